"""Aggregation of conflicting gradients, by torchjd."""
