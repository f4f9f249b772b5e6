"""Kernels for GPUs, each beside the plain code that gives the same numbers."""
