"""Studies of runs and data: inspect, simulate, fit, explain, report and watch."""
