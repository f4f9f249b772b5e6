"""Trains several policies that play in the same environments: each is a run of its own."""
