"""How fast and how large: planning, loading, a step, a measurement, a report."""
