"""What others reach: gRPC, security, metrics, the status page, the log."""
