"""Watches a run: the terminal, the live view, the page, what Prometheus asks for."""
