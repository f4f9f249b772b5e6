"""Weights in chunks: published, fetched, and shared between processes of a machine."""
