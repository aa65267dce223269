"""Shared parts of schedules."""
