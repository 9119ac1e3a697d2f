"""Recalibration of class probabilities: methods and their document, as pure values."""
