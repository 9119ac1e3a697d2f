"""Drift detection: bets against a reference under one false-alarm budget."""
