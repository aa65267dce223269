"""Studies of runs and data: inspect, simulate, fit, explain, value and watch."""
