"""By what samples on disk are known again: everything that they follow from."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

import numpy as np

from mixer.recipe.data.formats.base import Format

# Of so many rows, evenly spaced, the content is compared when a run goes on: reading all would cost as much as a pass.
_NUM_COMPARED = 256

# What is left in a fast tokenizer by the last text that it was called with.
_PASSING = ("truncation", "padding")


def fingerprint_of(dataset: Any, chosen: Format, tokenizer: Any, task: str) -> str:
    """Gives the fingerprint of the samples that a format makes.

    Args:
        dataset: The rows, a `datasets.Dataset`.
        chosen: The format.
        tokenizer: The tokenizer.
        task: The model's task.

    Returns:
        32 hexadecimal digits: the same in every process for the same rows, code, settings and tokenizer.
    """
    kind = type(chosen)
    parts = [
        dataset._fingerprint,
        f"{kind.__module__}.{kind.__qualname__}",
        kind.version,
        asdict(chosen),  # type: ignore[call-overload]  # formats are dataclasses
        task,
        tokenizer_content(tokenizer),
    ]
    return hashlib.blake2b(json.dumps(parts, sort_keys=True, default=str).encode(), digest_size=16).hexdigest()


def content_of(dataset: Any) -> str:
    """Gives by what the samples of a data set are known again, wherever they lie and whenever they were made.

    Args:
        dataset: The samples, a `datasets.Dataset`.

    Returns:
        16 hexadecimal digits that follow from up to 256 rows, evenly spaced, in their order.
    """
    places = np.unique(np.linspace(0, len(dataset) - 1, _NUM_COMPARED).astype(np.int64))
    rows = dataset.with_format("arrow")[places].to_pylist()
    return hashlib.blake2b(json.dumps(rows, sort_keys=True, default=str).encode(), digest_size=8).hexdigest()


def tokenizer_content(tokenizer: Any) -> Mapping[str, Any]:
    """Gives what a tokenizer's tokens follow from, whatever it was called with before.

    Args:
        tokenizer: The tokenizer.

    Returns:
        Plain data.
    """
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None:
        content: Any = sorted(tokenizer.get_vocab().items())
    else:
        content = {name: part for name, part in json.loads(backend.to_str()).items() if name not in _PASSING}
    return {
        "class": f"{type(tokenizer).__module__}.{type(tokenizer).__qualname__}",
        "content": content,
        "chat_template": tokenizer.chat_template,
        "special_tokens": {name: str(token) for name, token in tokenizer.special_tokens_map.items()},
        "model_max_length": tokenizer.model_max_length,
        "truncation_side": tokenizer.truncation_side,
        "split_special_tokens": getattr(tokenizer, "split_special_tokens", False),
    }
