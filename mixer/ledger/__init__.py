"""Records of a run: ledger tables and progress bars."""
