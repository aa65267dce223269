"""Iterable data sets: read ahead, shared out over ranks and workers, resumed exactly."""
