"""The ledger: every frame and label message that changed something, in order, on disk."""
