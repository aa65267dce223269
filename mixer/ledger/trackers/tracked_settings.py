"""Names and settings of a run in trackers' formats, without secrets."""

import re
from collections.abc import Collection, Mapping
from typing import Any

from transformers.utils import logging

from mixer.utils.storage_options import HIDDEN
from mixer.utils.yaml_files import load_yaml

logger = logging.get_logger(__name__)

_CLOCK = ("batch_size", "learning_rate_factor", "train_coverage")
_OF_A_SET = re.compile(r"eval_(.+)_loss")
_SECRET = re.compile(
    r"(^|_)((api|access|private|auth)?(token|key|secret)|password|passwd|passphrase|pwd|credential|authorization)s?$"
)
# Vocabulary tokens and columns whose names end like those of secrets.
_HARMLESS = re.compile(r"^((pad|eos|bos|unk|sep|cls|mask|image|audio)_token|(order|sort|label|image|text)_keys?)$")
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")


def grouped(entries: Mapping[str, float]) -> dict[str, float]:
    """Adds a group to log entries without one.

    Args:
        entries: Log entries on streams and mixture.

    Returns:
        The same values under names such as `loss/math`, `clock/batch_size` and `mixture/gradient_noise_scale`.

    Example:
        >>> grouped({"loss/math": 2.0, "batch_size": 64})
        {'loss/math': 2.0, 'clock/batch_size': 64}
    """
    groups = {name: "" if "/" in name else "clock/" if name in _CLOCK else "mixture/" for name in entries}
    return {f"{groups[name]}{name}": value for name, value in entries.items()}


def evaluation_losses(logs: Mapping[str, float], sets: Collection[str]) -> dict[str, float]:
    """Extracts the losses of evaluation sets from a log entry of the Trainer, as `eval_loss/NAME`."""
    matches = {name: _OF_A_SET.fullmatch(name) for name in logs}
    return {f"eval_loss/{match[1]}": logs[name] for name, match in matches.items() if match and match[1] in sets}


class Names:
    """Maps names to distinct names that a tracker accepts.

    Args:
        refused: Pattern of the characters that it refuses.
        longest: Maximum length of a name.
    """

    def __init__(self, refused: str, longest: int):
        self._refused, self._longest = re.compile(refused), longest
        self._taken: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Returns the tracker's name for a log entry: `_` replaces refused characters, a number resolves conflicts."""
        if name not in self._taken:
            parts = [self._refused.sub("_", part) for part in name.split("/")]
            plain = "/".join("_" * len(part) if not part.strip(".") else part for part in parts)[: self._longest]
            free, number, taken = plain, 1, set(self._taken.values())
            while free in taken:
                number += 1
                free = f"{plain[: self._longest - len(str(number)) - 1]}_{number}"
            if number > 1:
                logger.warning("A tracker shows %r as %r: another name became the same there.", name, free)
            self._taken[name] = free
        return self._taken[name]


def redacted(value: Any, name: str = "") -> Any:
    """Hides values with secret names, at any depth, and user names and passwords in addresses.

    Args:
        value: Plain data: mappings, lists, texts and numbers.
        name: Name of the value.

    Returns:
        The same with `***` in place of secrets; `None`, booleans, and numbers named tokens are not secrets.

    Example:
        >>> redacted({"hub_token": "abc", "max_tokens": 512, "pad_token": "<pad>", "url": "https://me:abc@host/x"})
        {'hub_token': '***', 'max_tokens': 512, 'pad_token': '<pad>', 'url': 'https://***@host/x'}
    """
    if _is_secret(value, name):
        return HIDDEN
    if isinstance(value, Mapping):
        return {key: redacted(part, str(key)) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [redacted(part) for part in value]
    return _IN_ADDRESS.sub(HIDDEN, value) if isinstance(value, str) else value


def _is_secret(value: Any, name: str) -> bool:
    if value is None or isinstance(value, bool):
        return False
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name.strip()).replace("-", "_").lower()
    is_count = isinstance(value, int | float) and words.endswith("tokens")
    return bool(_SECRET.search(words)) and not _HARMLESS.match(words) and not is_count


def config_of(description: Mapping[str, Any], recipe: str | None) -> dict[str, Any]:
    """Returns what trackers keep of a run's settings, without secrets.

    Args:
        description: Result of `describe_run`.
        recipe: Text of its recipe, if it has one.

    Returns:
        The description with streams by name, which trackers show as a tree, and the recipe.
    """
    streams = {
        row["name"]: {key: value for key, value in row.items() if key != "name"} for row in description["streams"]
    }
    config = {"mixture": {**description, "streams": streams}, "recipe": None if recipe is None else load_yaml(recipe)}
    hidden: dict[str, Any] = redacted(config)
    return hidden
