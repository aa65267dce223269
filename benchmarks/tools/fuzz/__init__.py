"""Hostile input."""
