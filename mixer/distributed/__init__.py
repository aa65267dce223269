"""Ranks: collectives that cannot hang, launching, signals, and checks that all do the same run."""
