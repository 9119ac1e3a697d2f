"""Promotion of recalibrators: whole tracks, trials of candidates, guards of the active ones."""
