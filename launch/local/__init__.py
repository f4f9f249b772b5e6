"""`headrace train`: all roles of a run on one machine."""
