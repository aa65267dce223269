"""Layers with a backward pass that keeps the gradients of rows apart."""
