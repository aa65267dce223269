"""An inspection as plain data, for scripts."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from mixer.analysis.inspect.distribution import distribution_of
from mixer.analysis.inspect.finding import Finding
from mixer.analysis.inspect.inspection import InspectedStream, Inspection
from mixer.analysis.inspect.measures import Measures


def document_of(inspection: Inspection, findings: Sequence[Finding]) -> dict[str, Any]:
    """Gives an inspection as plain data.

    Args:
        inspection: The inspection.
        findings: What of it will hurt.

    Returns:
        Mappings, lists, numbers and texts.
    """
    batch = inspection.batch
    return {
        "task": inspection.task,
        "vocabulary": inspection.vocabulary,
        "positions": inspection.positions,
        "streams": [_stream(one) for one in inspection.streams],
        "batch": {**asdict(batch), "padding": batch.padding},
        "overlaps": [{**asdict(one), "share": one.share} for one in inspection.overlaps],
        "warnings": [asdict(finding) for finding in findings],
        "num_samples": inspection.look.num_samples,
        "seed": inspection.look.seed,
        "samples_read": inspection.num_read,
        "seconds": inspection.seconds,
        "samples_per_second": inspection.samples_per_second,
    }


def _stream(one: InspectedStream) -> dict[str, Any]:
    stream = one.stream
    chosen: Any = one.format  # formats are dataclasses
    return {
        "name": stream.name,
        "is_memory": stream.is_memory,
        "is_iterable": stream.is_iterable,
        "weight": one.weight,
        "max_epochs": stream.max_epochs,
        "passes": one.passes,
        "format": None if chosen is None else {"name": type(chosen).__name__, "arguments": asdict(chosen)},
        "num_rows": one.num_rows,
        "truncation": None
        if one.truncation is None
        else {**asdict(one.truncation), "share_cut": one.truncation.share_cut},
        "beyond_positions": one.beyond_positions,
        "num_classes": one.num_classes,
        "class_names": one.class_names,
        "training": _measures(one.measures),
        "validation": None if one.evaluation is None else _measures(one.evaluation),
        "examples": [asdict(example) for example in one.examples],
    }


def _measures(measures: Measures) -> dict[str, Any]:
    lengths = distribution_of(measures.known_lengths)
    return {
        "size": measures.size,
        "num_read": measures.num_read,
        "is_whole": measures.is_whole,
        "columns": measures.columns,
        "unit": measures.unit or None,
        "lengths": None if lengths is None else asdict(lengths),
        "share_learned": measures.share_learned,
        "mean_learned": measures.mean_learned,
        "nothing_learned": measures.num_nothing_learned,
        "classes": measures.classes,
        "num_broken": measures.num_broken,
        "broken": [asdict(one) for one in measures.broken],
    }
