"""Studies of runs and data: inspect, simulate, fit, DoReMi, explain, report and watch."""
