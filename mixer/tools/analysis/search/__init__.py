"""Which mixtures to run next, and their runs."""
