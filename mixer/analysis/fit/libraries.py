"""Libraries that only some regressions need."""

import importlib
from types import ModuleType


def library(name: str, user: str, package: str, otherwise: str) -> ModuleType:
    """Imports a library when it is first needed.

    Args:
        name: The module.
        user: What needs it, for the error.
        package: What to install, for the error.
        otherwise: What to do without it, for the error.

    Returns:
        The module.

    Raises:
        ValueError: If it is not installed.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or error.name.split(".")[0] != name.split(".")[0]:
            raise
        raise ValueError(
            f"{user} needs {error.name}, which is not installed: pip install '{package}', or {otherwise}."
        ) from None
