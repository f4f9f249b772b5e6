"""The state of training on disk."""
