"""Lazy imports of a package's names, so that commands that only read need not load the trainer."""

import importlib
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import ismodule
from typing import Any


def lazy_names(
    package: str,
    modules: Mapping[str, Sequence[str]],
    whole: str | None = None,
    extras: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Returns `__getattr__` and `__dir__` for a package with lazily imported names.

    Args:
        package: Name of the package.
        modules: The names, by module. A module may be named itself.
        whole: A module of which every public name counts too, without being listed.
        extras: Names that need an extra, by module; `__all__` leaves them out.
    """
    exported = [name for names in modules.values() for name in names]
    module_of = {name: module for module, names in {**modules, **(extras or {})}.items() for name in names}

    def public() -> list[str]:
        content = vars(importlib.import_module(whole)) if whole else {}
        return [*exported, *(name for name, value in content.items() if name[0] != "_" and not ismodule(value))]

    def find(name: str) -> Any:
        if name == "__all__":
            return public()
        if name not in module_of and (name[0] == "_" or name not in public()):
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        module = importlib.import_module(module_of.get(name, whole or ""))
        return module if module.__name__ == f"{package}.{name}" else getattr(module, name)

    def list_names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *public()})

    return find, list_names
