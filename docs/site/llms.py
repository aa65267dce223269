"""`llms.txt`, the site's contents for language models: https://llmstxt.org."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

_HEAD = """\
# {name}

> {description}

An agent begins with [the page for agents]({agents}): ten commands with `--json`, their statuses, how to read a run.
"""
_LINK = re.compile(r"\[([^\]]+)\]\([^)]*\)")
_MOST_CHARACTERS = 200


def text(name: str, description: str, sections: Sequence[Any], agents: str) -> str:
    """Writes the file.

    Args:
        name: The site's name.
        description: The site's description.
        sections: The navigation, once its pages are read; the API reference is left out.
        agents: Where the page for agents is.
    """
    return _HEAD.format(name=name, description=description, agents=agents) + "\n".join(_lines(sections)) + "\n"


def _lines(items: Sequence[Any]) -> Iterator[str]:
    for item in items:
        if item.is_page:
            summary = _summary(item.markdown or "")
            yield f"- [{item.title}]({item.file.url})" + (f": {summary}" if summary else "")
        elif item.is_section and item.title != "API":
            yield from ("", f"## {item.title}", "")
            yield from _lines(item.children)


def _summary(markdown: str) -> str:
    """Returns the first sentence of a page that is neither a heading nor a list, a table or code."""
    parts = (" ".join(part.split()) for part in re.sub(r"(?s)```.*?```", "", markdown).split("\n\n"))
    first = next((part for part in parts if part[:1].isalnum() or part[:1] == "`"), "")
    sentence = re.split(r"(?<=[.:])\s", _LINK.sub(r"\1", first))[0]
    return sentence if len(sentence) <= _MOST_CHARACTERS else ""
