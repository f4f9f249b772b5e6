"""The web server of every process, its health and metrics, and the runbook that it serves."""
