"""Names of a package that are imported when they are asked for: who reads what a run left waits for no trainer."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Makes what a package finds such names by.

    Args:
        package: The package's name.
        modules: The names, by the module that each is imported from.

    Returns:
        The package's `__getattr__` and `__dir__`.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return getattr(importlib.import_module(module_of[name]), name)

    def list_names() -> list[str]:
        content = vars(sys.modules[package])
        return sorted({*content, *content["__all__"]})

    return find, list_names
