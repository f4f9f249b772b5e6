"""Lets several policies play in the same environments, each as if it were alone there."""
