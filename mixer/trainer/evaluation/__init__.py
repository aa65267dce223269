"""Evaluations: their sets, what they return, and the metric that chooses the best model."""
