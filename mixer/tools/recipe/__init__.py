"""A YAML recipe becomes data, model, streams and trainer."""

from typing import TYPE_CHECKING

from mixer.utils.lazy_imports import lazy_names

if TYPE_CHECKING:
    from mixer.tools.recipe.recipe import Recipe
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "mixer.tools.recipe.recipe": ["Recipe"],
        },
    )

__all__ = ["Recipe"]
