"""Shared parts of policies."""
