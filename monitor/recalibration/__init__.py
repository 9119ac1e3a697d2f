"""Recalibrators: methods that are fitted, the choice between them, their documents."""
