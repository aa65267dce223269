"""Studies of runs and data: inspect, simulate, fit, explain and value."""
