"""Batches that change, against constant ones."""
