"""Layers whose backward keeps the gradients of rows apart."""
