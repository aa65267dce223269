"""Shared helpers: text, files, YAML, lookup by name and random state."""
