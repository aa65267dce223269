"""Faults injected into runs of several ranks, and what each of them loses: `python -m benchmarks.faults`."""
