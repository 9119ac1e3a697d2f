"""Protobuf messages to values of the monitor, and back."""
