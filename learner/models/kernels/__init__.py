"""What takes the place of plain code where it runs faster, each beside that: kernels for GPUs, and
oneDNN's LSTM on a CPU."""
