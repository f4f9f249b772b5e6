"""Benchmarks of a learner alone."""
