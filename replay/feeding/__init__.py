"""Filling a buffer during training."""
