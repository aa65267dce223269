"""How docstrings become the API reference.

They head what runs as a doctest with `Example:`; griffe reads it as code under `Examples:` alone.
"""

from typing import Any

from griffe import Class, Extension, Object


class Reference(Extension):
    """Has examples read as code, and leaves out methods that only override the Trainer's."""

    def on_object(self, *, obj: Object, **kwargs: Any) -> None:
        """Renames the section.

        Args:
            obj: Something with a docstring, or without one.
            **kwargs: Not needed.
        """
        if obj.docstring:
            obj.docstring.value = obj.docstring.value.replace("\nExample:\n", "\nExamples:\n")

    def on_class_members(self, *, cls: Class, **kwargs: Any) -> None:
        """Drops what the Trainer documents: methods whose docstring says "see `Trainer.NAME`".

        Args:
            cls: A class with its members.
            **kwargs: Not needed.
        """
        for name, member in list(cls.members.items()):
            if member.is_function and member.docstring and "; see `Trainer." in member.docstring.value:
                del cls.members[name]
