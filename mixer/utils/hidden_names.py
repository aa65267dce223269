"""Packages of this library that something else of the same name hides."""

import sys
from importlib.util import find_spec
from pathlib import Path

_HOME = Path(__file__).resolve().parents[2]
_PACKAGES = ("mixer", "replay", "tasks")


def hidden(module: str) -> str:
    """Says what hides a module of this library, and the way out, without importing the module.

    Args:
        module: Dotted name of any module.

    Returns:
        A sentence; empty if nothing is hidden or the module belongs to another library.
    """
    package = module.partition(".")[0]
    place = _place(package) if package in _PACKAGES else None
    if place is None or _is_own(package, place):
        return ""
    return (
        f"Python finds {package!r} at {place}, which hides the package {package!r} of adaptive-mixer. Rename your own "
        "file, or start from another folder; a package that pip installed belongs in another environment."
    )


def check_found(module: str) -> None:
    """Raises `ModuleNotFoundError` if a module of this library is hidden, without importing it."""
    if problem := hidden(module):
        raise ModuleNotFoundError(problem.removesuffix("."), name=module)


def _place(package: str) -> Path | None:
    """Returns the file that Python imports, or has imported, for a package; `None` if there is none."""
    loaded = sys.modules.get(package)
    spec = find_spec(package) if loaded is None else None
    file = getattr(loaded, "__file__", None) or (spec and spec.origin)
    folders = list(getattr(loaded, "__path__", ()) or (spec and spec.submodule_search_locations) or ())
    place = file or next(iter(folders), None)  # a folder without __init__.py has no file
    return None if place is None else Path(place).resolve()


def _is_own(package: str, place: Path) -> bool:
    if place != _HOME / package / "__init__.py":
        return False
    # Another distribution may have put its `mixer/__init__.py` over ours.
    return package != "mixer" or "lazy_names" in vars(sys.modules["mixer"])
