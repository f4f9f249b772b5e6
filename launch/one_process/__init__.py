"""Training in one process and one thread, without a broker."""
