"""Faults injected into runs of several ranks, and what each of them loses."""
