"""The Grafana dashboards, written as Python and kept as JSON in `dashboards/`.

`python -m deploy.grafana` writes them anew. Edit the Python, never the JSON.
"""
