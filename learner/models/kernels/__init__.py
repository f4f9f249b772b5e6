"""Kernels for GPUs, and oneDNN's LSTM for a CPU, each beside the plain code it stands for."""
