"""Saving a run and resuming it exactly."""
