"""Replay buffers that are streams of a mixture (to come; the package holds the place in the import order)."""
