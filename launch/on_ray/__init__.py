"""`headrace ray`: a run on a Ray cluster."""
