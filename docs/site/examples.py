"""Docstrings head what runs as a doctest with `Example:`; griffe reads it as code under `Examples:` alone."""

from typing import Any

from griffe import Extension, Object


class Examples(Extension):
    """Has examples read as code."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Renames the section.

        Args:
            obj: Something with a docstring, or without one.
            **kwargs: Not needed.
        """
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")
