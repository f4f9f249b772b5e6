"""Simulated peers, and the processes that they run in, for the benchmarks."""
