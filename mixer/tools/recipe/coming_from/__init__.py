"""Recipes from the configurations of other tools: one file a tool, and what they share in `source` and `common`."""
