"""Whether a data set can be indexed."""

from typing import Any


def check_map_style(dataset: Any, called: str) -> None:
    """Makes sure that samples can be counted and read by their number.

    Args:
        dataset: What was given as a data set.
        called: What to call it in an error.

    Raises:
        TypeError: If they cannot.
    """
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise TypeError(
            f"{called} must be a data set with __len__ and __getitem__, got a {type(dataset).__name__}. Rows of an "
            "iterable one are brought into memory or onto disk first, with datasets.Dataset.from_generator say."
        )
