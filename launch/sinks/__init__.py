"""Sends what a run writes down to where people look at their experiments."""
