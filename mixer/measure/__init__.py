"""Hooks that measure what policies and schedules ask for, and the forward passes beside the step that they need."""
