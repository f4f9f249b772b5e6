"""Simulated peers and a stage for them, for the benchmarks."""
