"""Files: the state, the ledger, recalibrators and recorded drives."""
