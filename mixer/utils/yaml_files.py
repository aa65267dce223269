"""YAML as plain data: no tags that make objects, and no few lines that stand for billions."""

from typing import Any

import yaml

MOST_CHARACTERS = 16 * 2**20
MOST_PARTS = 200_000


def load_yaml(text: str, loader: type[yaml.SafeLoader] = yaml.SafeLoader) -> Any:
    """Reads YAML that may be anything.

    Args:
        text: The text.
        loader: What reads it, a safe one.

    Returns:
        Its content.

    Raises:
        ValueError: If it is too long, nested too deep, stands for too much (by aliases of aliases) or for itself.
        yaml.YAMLError: If it is no YAML, or has tags of other things than plain data.
    """
    if len(text) > MOST_CHARACTERS:
        raise ValueError(f"it is longer than the limit of {MOST_CHARACTERS:,} characters")
    reader = loader(text)
    try:
        node = reader.get_single_node()
        if node is None:
            return None
        if _size(node, {}) > MOST_PARTS:
            raise ValueError(f"it has more than {MOST_PARTS:,} parts once aliases are expanded")
        return reader.construct_document(node)
    except RecursionError:
        raise ValueError("it has too many nested levels") from None
    finally:
        reader.dispose()


def _size(node: yaml.Node, sizes: dict[int, int]) -> int:
    """Counts what a node stands for, each alias anew; -1 marks one that is being counted."""
    known = sizes.get(id(node))
    if known is not None:
        if known < 0:
            raise ValueError("it has an alias that contains itself")
        return known
    sizes[id(node)] = -1
    parts = node.value if isinstance(node, yaml.CollectionNode) else []
    if isinstance(node, yaml.MappingNode):
        parts = [part for pair in node.value for part in pair]
    size = 1 + sum(_size(part, sizes) for part in parts)
    sizes[id(node)] = size
    return size
