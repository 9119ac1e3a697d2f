"""Fits of recalibrators, in a process of their own, and the rounds in which they are asked for."""
