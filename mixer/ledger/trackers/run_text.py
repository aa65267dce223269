"""What a run is, in the forms that trackers keep."""

import html
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from mixer.ledger.trackers.redacting import redacted
from mixer.utils.yaml_files import load_yaml

# What Markdown reads as code, ends of cells, and links and pictures.
_MARKDOWN = re.compile(r"[\\`|]|\](?=[(\[:])")


@dataclass(frozen=True)
class RunText:
    """A run, for trackers.

    Args:
        description: What `describe_run` gave.
        recipe: The text of its recipe, if it has one.
    """

    description: Mapping[str, Any]
    recipe: str | None

    @property
    def recipe_text(self) -> str:
        """The recipe without secrets, or the description where there is none."""
        if self.recipe is None:
            return json.dumps({name: value for name, value in self._told.items() if name != "streams"}, indent=2)
        return yaml.safe_dump(redacted(load_yaml(self.recipe)), sort_keys=False, allow_unicode=True)

    @property
    def _told(self) -> dict[str, Any]:
        told: dict[str, Any] = redacted(self.description)
        return told

    @property
    def config(self) -> dict[str, Any]:
        """The description with streams by name, which trackers show as a tree, and the recipe."""
        streams = {
            row["name"]: {key: value for key, value in row.items() if key != "name"} for row in self._told["streams"]
        }
        return {"mixture": {**self._told, "streams": streams}, "recipe": self.recipe_text}

    @property
    def parameters(self) -> dict[str, str]:
        """Its settings as texts, one a name, without the streams."""
        return {
            f"mixture/{name}": value if isinstance(value, str) else json.dumps(value)
            for name, value in self._told.items()
            if name != "streams"
        }

    @property
    def stream_table(self) -> str:
        """The streams as a table in Markdown."""
        return markdown_table(self._told["streams"])


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Writes a table in Markdown.

    Args:
        rows: At least one, all with the same keys.

    Returns:
        The table.
    """
    lines = [list(rows[0]), ["---"] * len(rows[0]), *([_cell(value) for value in row.values()] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _cell(value: Any) -> str:
    if value is None or value != value:
        return ""
    text = f"{value:.4g}" if isinstance(value, float) else str(value)
    plain = "".join(character if character.isprintable() else " " for character in text)
    return _MARKDOWN.sub(r"\\\g<0>", html.escape(plain, quote=False))
