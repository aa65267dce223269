"""Mixture core, independent of the model: streams, planner, clock, weights, batch size and controller."""
