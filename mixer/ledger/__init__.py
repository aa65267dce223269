"""Records of a run: ledger tables, progress bars and experiment trackers."""
