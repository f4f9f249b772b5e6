"""Rates what a run was at different times by games between them."""
