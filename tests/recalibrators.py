"""A recalibrator that only tests have a use for."""
