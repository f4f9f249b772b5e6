"""Seats others beside the policy while it learns: what it was before, and whom the run names."""
