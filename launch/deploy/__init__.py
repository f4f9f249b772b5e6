"""Writes the files for systemd, supervisor, Slurm and Kubernetes from their templates."""
