"""Drift of calibration: evidence that accumulates, and alarms that keep a stated budget."""
