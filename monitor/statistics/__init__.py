"""Streaming calibration statistics: exact sums, windows, measures."""
