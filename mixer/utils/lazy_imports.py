"""Lazy imports of a package's names, so that commands that only read need not load the trainer."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(
    package: str, modules: Mapping[str, Sequence[str]]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package with lazily imported names.

    Args:
        package: Name of the package.
        modules: The names, by module; the last module that has a name counts. A module may be named itself.
    """
    module_of = {name: module for module, names in modules.items() for name in names}

    def find(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(module_of[name])
        return module if module.__name__ == f"{package}.{name}" else getattr(module, name)

    def list_names() -> list[str]:
        content = vars(sys.modules[package])
        return sorted({*content, *content["__all__"]})

    return find, list_names
