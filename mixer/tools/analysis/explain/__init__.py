"""Explains the mixture and the batch size of a step by the decisions that the run's ledger holds."""
