"""Graphs of the help between streams."""

from collections.abc import Mapping, Sequence

import numpy as np

from mixer.utils.arrays import FloatArray
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.text import safe_names

SkillGraph = Mapping[str, Mapping[str, float]] | Sequence[Sequence[float]] | FloatArray

_HINT = "give {helper: {helped: strength}} by name, or a row for each helper with a number for each stream"


def graph_array(graph: SkillGraph | None, names: Sequence[str]) -> FloatArray:
    """Validates a graph and sorts it in the order of the streams.

    Args:
        graph: Strengths by name or in order, or `None`; see `SkillIt`.
        names: Names of the streams.

    Returns:
        float64 `[num_streams, num_streams]`: `A_ij`, the help of training on stream i for stream j.

    Raises:
        ValueError: If names or the shape do not fit, or a strength is negative or not finite.
    """
    if graph is None:
        return np.eye(len(names))
    array = _by_name(graph, names) if isinstance(graph, Mapping) else _in_order(graph, names)
    if not (np.isfinite(array) & (array >= 0)).all():
        raise ValueError(f"SkillIt: strengths in the graph must be finite and 0 or more, got {array.tolist()}.")
    return array


def _by_name(graph: Mapping[str, Mapping[str, float]], names: Sequence[str]) -> FloatArray:
    if not all(isinstance(row, Mapping) for row in graph.values()):
        raise wrong_value("graph", f"SkillIt: the graph must have a mapping for each helper, got {graph!r}; {_HINT}.")
    graph = {name: safe_names(row, "SkillIt: graph") for name, row in safe_names(graph, "SkillIt: graph").items()}
    named = set(graph).union(*graph.values())
    unknown = sorted(named - set(names))
    if unknown:
        raise wrong_value("graph", f"SkillIt: the graph names {unknown}, but the streams are {list(names)}; {_HINT}.")
    rows = [[graph.get(i, {}).get(j, float(i == j)) for j in names] for i in names]
    return np.array(rows, dtype=np.float64)


def _in_order(graph: Sequence[Sequence[float]] | FloatArray, names: Sequence[str]) -> FloatArray:
    try:
        array = np.array(graph, dtype=np.float64)
    except (TypeError, ValueError):
        raise wrong_value(
            "graph", f"SkillIt: the graph must be numbers in rows of equal length, got {graph!r}."
        ) from None
    if array.shape != (len(names), len(names)):
        text = f"SkillIt: the graph must have a row and a column for each of {list(names)}; {_HINT}."
        raise InvalidValueError(text, option="graph", found=list(array.shape))
    return array
