"""Writes the dashboards and METRICS.md: python -m grafana.generate."""
