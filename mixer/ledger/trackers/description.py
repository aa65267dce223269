"""Names and settings of a run in trackers' formats, without secrets."""

import html
import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml
from transformers.utils import logging

from mixer.utils.yaml_files import load_yaml

logger = logging.get_logger(__name__)

_CLOCK = ("batch_size", "learning_rate_factor", "train_coverage")
_OF_A_SET = re.compile(r"eval_(.+)_loss")
HIDDEN = "***"
_SECRET = re.compile(
    r"(^|_)((api|access|private|auth)?(token|key|secret)|password|passwd|passphrase|pwd|credential|authorization)s?$"
)
# Vocabulary tokens and columns whose names end like those of secrets.
_HARMLESS = re.compile(r"^((pad|eos|bos|unk|sep|cls|mask|image|audio)_token|(order|sort|label|image|text)_keys?)$")
_IN_ADDRESS = re.compile(r"(?<=://)[^/\s@]+(?=@)")
# Markdown syntax of code, cell ends, links and pictures.
_MARKDOWN = re.compile(r"[\\`|]|\](?=[(\[:])")


def grouped(entries: Mapping[str, float]) -> dict[str, float]:
    """Adds a group to log entries without one.

    Args:
        entries: Log entries on streams and mixture.

    Returns:
        The same values under names such as `loss/math`, `clock/batch_size` and `mixture/conflicts`.

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


@dataclass(frozen=True)
class RunText:
    """Texts about a run, for trackers.

    Args:
        description: Result of `describe_run`.
        recipe: Text of its recipe, if it has one.
    """

    description: Mapping[str, Any]
    recipe: str | None

    @property
    def recipe_text(self) -> str:
        """The recipe without secrets, or the description if there is none."""
        if self.recipe is None:
            return json.dumps({name: value for name, value in self._public.items() if name != "streams"}, indent=2)
        return yaml.safe_dump(redacted(load_yaml(self.recipe)), sort_keys=False, allow_unicode=True)

    @property
    def _public(self) -> dict[str, Any]:
        public: dict[str, Any] = redacted(self.description)
        return public

    @property
    def config(self) -> dict[str, Any]:
        """The description with streams by name, shown as a tree by trackers, and the recipe."""
        streams = {
            row["name"]: {key: value for key, value in row.items() if key != "name"} for row in self._public["streams"]
        }
        return {"mixture": {**self._public, "streams": streams}, "recipe": self.recipe_text}

    @property
    def parameters(self) -> dict[str, str]:
        """The settings as texts by name, without the streams."""
        return {
            f"mixture/{name}": value if isinstance(value, str) else json.dumps(value)
            for name, value in self._public.items()
            if name != "streams"
        }

    @property
    def stream_table(self) -> str:
        """The streams as a Markdown table."""
        return markdown_table(self._public["streams"])


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Returns a Markdown table of at least one row; all rows have the same keys."""
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    plain = "".join(character if character.isprintable() else " " for character in text)
    return _MARKDOWN.sub(r"\\\g<0>", html.escape(plain, quote=False))
