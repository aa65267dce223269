"""Recipes from the configurations of other tools: a file or a table of keys a tool, and what they share."""
