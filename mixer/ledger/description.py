"""Description of a run as plain data: the settings of its mixture, for reports and explanations."""

from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from typing import Any

from mixer.loading.build import MixtureOptions
from mixer.mixture.controller import Mixing
from mixer.mixture.stream import Stream
from mixer.models.class_names import find_class_names
from mixer.models.labels import LABEL_COLUMNS
from mixer.utils.recorded_arguments import as_data

# Mixture settings of a stream that are plain data.
_STREAM_FIELDS = (
    *("weight", "max_epochs", "max_samples", "max_tokens", "max_labels", "shuffle", "enters_at", "leaves_at"),
    *("groups", "head", "loss_weight", "distinct_by"),
)


_version = cache(version)


def describe_run(
    streams: Sequence[Stream], mixing: Mixing, options: MixtureOptions, world_size: int, methods: Sequence[str] = ()
) -> dict[str, Any]:
    """Describes a run at its start.

    Args:
        streams: Streams.
        mixing: Mixture controller.
        options: Mixture settings.
        world_size: Number of ranks.
        methods: Names of the active methods.

    Returns:
        JSON-compatible data: streams (see `stream_table`), sources (see `source_of`), mixing and batch_size (as in
        recipes), budget, epoch_size (`None` if the run is one epoch), initial_batch_size, planned_steps (at the initial
        batch size), drawing, one_stream_per (`None` for mixed steps), groupings, data_seed, world_size, methods,
        eval_weights (`None` for the plain mean), loss_units (`None` where losses are not compared, or as they are),
        objective, version.
    """
    clock = mixing.clock
    return {
        "version": _version("adaptive-mixer"),
        "streams": stream_table(streams),
        "sources": {stream.name: source for stream in streams if (source := source_of(stream))},
        "class_names": _class_names(streams),
        "mixing": as_data(mixing.policy),
        "batch_size": as_data(mixing.schedule),
        "initial_batch_size": mixing.initial_batch_size,
        "budget": clock.budget.limits,
        "epoch_size": clock.epoch_size if clock.has_length else None,
        "planned_steps": clock.planned_steps,
        "drawing": options.drawing,
        "one_stream_per": options.one_stream_per,
        "groupings": [as_data(vars(grouping)) for grouping in options.groupings],
        "data_seed": options.seed,
        "world_size": world_size,
        "methods": list(methods),
        "eval_weights": as_data(options.eval_weights),
        "loss_units": None if mixing.loss_units is None else mixing.loss_units.state_dict()["units"],
        "objective": None if options.objective is None else options.objective.describe(),
    }


def _class_names(streams: Sequence[Stream]) -> list[str] | None:
    """Returns the names of the classes, where all streams that name theirs name the same ones."""
    found = [find_class_names(stream.dataset, stream.label_names or LABEL_COLUMNS) for stream in streams]
    names = {tuple(classes[1]) for classes in found if classes is not None}
    return [*names.pop()] if len(names) == 1 else None


def source_of(stream: Stream) -> dict[str, Any]:
    """Says where a stream's data come from, as far as they say so themselves: fingerprint, content, licence, origin."""
    info = getattr(stream.dataset, "info", None)
    origin = {name: getattr(info, name, None) for name in ("dataset_name", "config_name", "version", "homepage")}
    checksums = getattr(info, "download_checksums", None)
    origin["files"] = ", ".join(checksums) if isinstance(checksums, dict) else None
    found = {
        "fingerprint": getattr(stream.dataset, "_fingerprint", None),
        "content": stream.content,
        "licence": getattr(info, "license", None),
        "origin": {name: str(value) for name, value in origin.items() if value},
    }
    return {name: value for name, value in found.items() if value and isinstance(value, (str, dict))}


def stream_table(streams: Sequence[Stream]) -> list[dict[str, Any]]:
    """Describes streams as plain data, one row each.

    Returns:
        Name, kind (`"data"`, `"iterable"` or `"memory"`), num_samples (`None` if unknown) and mixture settings.
    """
    return [
        {
            "name": stream.name,
            "kind": "memory" if stream.is_memory else "iterable" if stream.is_iterable else "data",
            "num_samples": stream.num_samples or None,
            **{name: as_data(getattr(stream, name)) for name in _STREAM_FIELDS},
        }
        for stream in streams
    ]
