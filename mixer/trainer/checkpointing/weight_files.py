"""Weights of a checkpoint that somebody has saved again since, in other files than those that the run wrote."""

import re
from collections.abc import Iterable
from pathlib import Path

from mixer.utils.bounded import DAMAGE, load_json

_WHOLE = ("model.safetensors", "pytorch_model.bin")
_INDICES = tuple(f"{name}.index.json" for name in _WHOLE)
# What `save_pretrained` writes of a model.
_OF_MODEL = re.compile(r"(generation_)?config\.json|(pytorch_)?model(-\d+-of-\d+)?\.(safetensors|bin)(\.index\.json)?")


def is_of_model(name: str) -> bool:
    """Says whether a file is one of those that `save_pretrained` writes anew.

    Args:
        name: Its path in the checkpoint.

    Returns:
        Whether it is.
    """
    return _OF_MODEL.fullmatch(name) is not None


def find_saved_again(checkpoint: Path, written: Iterable[str]) -> str | None:
    """Finds whole weights that stand in place of those that the run wrote, as another number of files.

    Args:
        checkpoint: The checkpoint's folder.
        written: The paths of the files that the run wrote.

    Returns:
        The name of the file, or of the index of its parts; `None` if the run's own weights are there, or no whole ones.
    """
    heads = [name for name in written if name in (*_WHOLE, *_INDICES)]
    if not heads or any((checkpoint / name).is_file() for name in heads):
        return None
    there = [name for name in (*_WHOLE, *_INDICES) if (checkpoint / name).is_file()]
    return next((name for name in there if name in _WHOLE or _has_parts(checkpoint / name)), None)


def _has_parts(index: Path) -> bool:
    try:
        parts = set(load_json(index)["weight_map"].values())
    except (OSError, ValueError, *DAMAGE):
        return False
    return bool(parts) and all(is_of_model(str(part)) and (index.parent / str(part)).is_file() for part in parts)
