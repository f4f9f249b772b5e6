"""What Grafana shows: a table for each dashboard, and the page of all metrics.

python -m launch.dashboards writes them into grafana/, where they are committed.
"""
