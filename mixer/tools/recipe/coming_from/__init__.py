"""Recipes from the configurations of other tools: one file a tool, and what they share in `source` and `common`."""

from mixer.tools.recipe.coming_from.convert import Conversion, convert

__all__ = ["Conversion", "convert"]
