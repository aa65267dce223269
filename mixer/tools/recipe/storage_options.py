"""Credentials in a recipe: the values of every `storage_options`, which are neither written nor shown."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from mixer.tools.recipe.yaml_files import load_yaml

STORAGE_OPTIONS = "storage_options"
HIDDEN = "***"
_LEAST_CHARACTERS = 3  # of a value to hide in a text


def hidden_values(content: Any) -> Any:
    """Returns plain data in which each value of `storage_options`, at any depth, is `***`.

    Example:
        >>> hidden_values({"path": "s3://rows", "storage_options": {"key": "K", "config": {"token": 1}}})
        {'path': 's3://rows', 'storage_options': {'key': '***', 'config': {'token': '***'}}}
    """
    if isinstance(content, Mapping):
        return {key: _stars(own) if key == STORAGE_OPTIONS else hidden_values(own) for key, own in content.items()}
    return [hidden_values(own) for own in content] if isinstance(content, list) else content


def without_credentials(text: str) -> str:
    """Returns a recipe as YAML in which each value of `storage_options` is `***`; the text itself if there is none."""
    if STORAGE_OPTIONS not in text:
        return text
    content = load_yaml(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    shown = hidden_values(content)
    return text if shown == content else yaml.safe_dump(shown, sort_keys=False, allow_unicode=True)


def without_values(text: str, content: Any) -> str:
    """Replaces what stands in the `storage_options` of plain data by `***` in a text, such as an error message.

    Args:
        text: The text.
        content: Plain data; a recipe, or a part of it.
    """
    for value in sorted(_texts(content, is_secret=False), key=len, reverse=True):
        text = text.replace(value, HIDDEN)
    return text


def _stars(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _stars(own) for key, own in value.items()}
    if isinstance(value, list):
        return [_stars(own) for own in value]
    return None if value is None else HIDDEN


def _texts(content: Any, is_secret: bool) -> Iterator[str]:
    if isinstance(content, Mapping):
        for key, own in content.items():
            yield from _texts(own, is_secret or key == STORAGE_OPTIONS)
    elif isinstance(content, list):
        for own in content:
            yield from _texts(own, is_secret)
    elif is_secret and len(str(content)) >= _LEAST_CHARACTERS and not isinstance(content, bool | None):
        yield str(content)
