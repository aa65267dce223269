"""Checkpoints on disk: which are complete, which to resume from, and what they hold."""
