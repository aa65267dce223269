"""Ranks: collectives that fail on all ranks instead of hanging, launching, signals, and consistency checks."""
