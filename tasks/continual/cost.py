"""What a task of a continual run costs: memory, disk and parameters."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mixer.utils.files import read_json, write_json

FILE = "cost.json"
COLUMNS = ("parameters", "trainable_parameters", "disk_bytes", "memory_bytes")


def write_cost(model: nn.Module, end: Path) -> None:
    """Writes what the state at the end of a task takes.

    Args:
        model: The model.
        end: The folder of the state, with all other files.
    """
    parameters = [*model.parameters()]
    counts = {
        "parameters": sum(parameter.numel() for parameter in parameters),
        "trainable_parameters": sum(parameter.numel() for parameter in parameters if parameter.requires_grad),
        "disk_bytes": sum(path.stat().st_size for path in end.rglob("*") if path.is_file()),
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
