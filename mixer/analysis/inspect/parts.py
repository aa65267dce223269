"""By what the samples of a stream are known again: their own content, or that of the rows that a format packs."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mixer.analysis.inspect.digests import digest
from mixer.analysis.inspect.duplicates import Part
from mixer.analysis.inspect.measures import Measures
from mixer.analysis.inspect.reading import SampleReading
from mixer.recipe.streams import BuiltStream


def parts_of(
    built: BuiltStream, measures: Measures, evaluation: Measures | None, num_samples: int, seed: int
) -> list[Part]:
    """Gives by what the samples of a stream are known again.

    Args:
        built: The stream. A block of a format that packs holds parts of several rows, so that rows are compared.
        measures: What was measured of the samples that are trained on.
        evaluation: Likewise of those for evaluation, or `None`.
        num_samples: The most rows that are looked at.
        seed: Seed of which those are.

    Returns:
        The samples that are trained on, and those that it is evaluated on if there are any.
    """
    name, chosen = built.stream.name, built.format
    if chosen is not None and chosen.packs:
        both = ((False, built.rows), (True, built.evaluation_rows))
        readings = [(held, SampleReading(rows, num_samples, seed)) for held, rows in both if rows is not None]
        return [_of_rows(name, held, reading, chosen.columns) for held, reading in readings]
    measured = ((False, measures), (True, evaluation))
    return [Part(name, held, "samples", own.digests, own.is_whole) for held, own in measured if own is not None]


def _of_rows(name: str, is_validation: bool, reading: SampleReading, columns: Sequence[str]) -> Part:
    rows = (row for _, row in reading if isinstance(row, Mapping))
    digests: list[Any] = [digest([row[column] for column in columns]) for row in rows]
    return Part(name, is_validation, "rows", np.array(digests, np.uint64), reading.is_whole)
