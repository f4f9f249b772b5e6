"""What every process does: logs, signals, systemd, HTTP, limits, locks."""
