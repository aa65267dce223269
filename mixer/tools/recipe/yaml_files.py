"""YAML as plain data, without object tags or exponentially nested aliases."""

from typing import Any

import yaml

MOST_CHARACTERS = 16 * 2**20
MOST_PARTS = 200_000


class TwiceError(ValueError):
    """A key that appears twice in a mapping."""


class _Loader(yaml.SafeLoader):
    """Refuses a duplicate key in a mapping: YAML would silently keep the last one."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        node: yaml.MappingNode = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.value != "<<":
                line = key.start_mark.line + 1
                if key.value in lines:
                    raise TwiceError(f"the key {key.value!r} appears twice, in line {lines[key.value]} and {line}")
                lines[key.value] = line
        return node


def load_yaml(text: str, loader: type[yaml.SafeLoader] = _Loader) -> Any:
    """Loads untrusted YAML.

    Args:
        text: Text.
        loader: A safe loader.

    Raises:
        ValueError: If it is too long, too deep, self-referential, or too large once aliases are expanded.
        TwiceError: If a key appears twice, by the default loader.
        yaml.YAMLError: If it is invalid, or has tags other than plain data.
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
    """Counts the parts of a node with aliases expanded; -1 marks a node being counted."""
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
