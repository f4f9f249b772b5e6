"""Environments of several agents that act at the same time."""
