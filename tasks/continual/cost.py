"""What a task of a continual run costs: memory, disk and parameters."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mixer.utils.files import read_json, write_json

FILE = "cost.json"
COLUMNS = ("parameters", "trainable_parameters", "disk_bytes", "memory_bytes")


def write_cost(model: nn.Module, end: Path, keeps_checkpoints: bool) -> None:
    """Writes what a task takes.

    Args:
        model: The model.
        end: The folder of the state at its end, in the folder of the task, with all other files.
        keeps_checkpoints: Whether the checkpoints of the task stay.
    """
    counted = [end] if end.name != "end" else [*end.parent.iterdir()]
    counted = [path for path in counted if keeps_checkpoints or not path.name.startswith("checkpoint-")]
    files = [path for one in counted for path in (one, *one.rglob("*")) if path.is_file()]
    sizes = {(status.st_dev, status.st_ino): status.st_size for status in map(Path.stat, files)}  # linked ones once
    parameters = [*model.parameters()]
    counts = {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "disk_bytes": sum(sizes.values()),
        "memory_bytes": _most_memory(),
    }
    write_json(end / FILE, counts)


def read_cost(end: Path) -> dict[str, Any]:
    """Reads what `write_cost` wrote; empty if it is missing."""
    return read_json(end / FILE) if (end / FILE).exists() else {}


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
