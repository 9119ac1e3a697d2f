"""Promotion of recalibrators: whole tracks, the trial of a candidate, the guard of what serves."""
