"""Iterable datasets: prefetching, sharding over ranks and workers, and exact resume."""
