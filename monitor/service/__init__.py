"""Serving: gRPC, security, metrics, the status page, the log."""
