"""The dashboards as tables, one a file."""
