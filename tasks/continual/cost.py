"""What a task of a continual run costs: memory, disk and parameters."""

import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from mixer.utils.files import read_json, write_json
from mixer.utils.random_state import drawn_places
from replay import ReplayBuffer

FILE = "cost.json"
COLUMNS = ("parameters", "trainable_parameters", "disk_bytes", "memory_bytes", "kept_bytes")
_LOOKED_AT = 64  # samples of a memory


def write_cost(model: nn.Module, end: Path, keeps_checkpoints: bool, buffers: Sequence[ReplayBuffer]) -> None:
    """Writes what a task takes.

    Args:
        model: The model.
        end: The folder of the state at its end, in the folder of the task, with all other files.
        keeps_checkpoints: Whether the checkpoints of the task stay.
        buffers: The memories.
    """
    counted = [end] if end.name != "end" else [*end.parent.iterdir()]
    counted = [path for path in counted if keeps_checkpoints or not path.name.startswith("checkpoint-")]
    kept = [end / "memory", end / "methods", *(end / "adapters").glob("*/")]  # the adapter of this task is no folder
    parameters = [*model.parameters()]
    counts = {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "disk_bytes": _size(counted),
        "memory_bytes": _most_memory(),
        "kept_bytes": _size(kept)
        + sum(_size_of_samples(buffer) for buffer in buffers if not buffer.storage.keeps_contents),
    }
    write_json(end / FILE, counts)


def read_cost(end: Path) -> dict[str, Any]:
    """Reads what `write_cost` wrote; empty if it is missing."""
    return read_json(end / FILE) if (end / FILE).exists() else {}


def _size(paths: Iterable[Path]) -> int:
    files = [path for place in paths for path in (place, *place.rglob("*")) if path.is_file()]
    return sum({(status.st_dev, status.st_ino): status.st_size for status in map(Path.stat, files)}.values())  # by file


def _size_of_samples(buffer: ReplayBuffer) -> int:
    """Estimates the bytes of samples that stay in their data sets, by a few of them."""
    slots = drawn_places(len(buffer), _LOOKED_AT, 0).tolist()
    return round(len(buffer) * float(np.mean([_bytes_of(buffer[slot]) for slot in slots]))) if slots else 0


def _bytes_of(value: Any) -> int:
    if isinstance(value, Mapping | list | tuple):
        return sum(map(_bytes_of, value.values() if isinstance(value, Mapping) else value))
    if isinstance(value, str | bytes):
        return len(value.encode() if isinstance(value, str) else value)
    if hasattr(value, "getbands"):  # a picture of PIL
        return int(value.width * value.height * len(value.getbands()))
    return int(getattr(value, "nbytes", 8))


def _most_memory() -> int:
    """Largest memory so far: of the accelerator if there is one, else of the process."""
    if torch.cuda.is_available():
        return int(torch.cuda.max_memory_allocated())
    if sys.platform == "win32":
        import psutil  # accelerate brings it along

        return int(psutil.Process().memory_info().peak_wset)
    import resource  # which Windows lacks

    kibibytes = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return kibibytes if sys.platform == "darwin" else 1024 * kibibytes
