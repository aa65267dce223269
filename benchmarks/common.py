"""What the benchmarks share: the machine, paired statistics, tables and the file of figures."""

import argparse
import json
import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import transformers
from numpy.typing import ArrayLike
from rich.console import Console
from rich.table import Table

# Training arguments of a run that says and keeps nothing.
QUIET: dict[str, Any] = {
    "logging_strategy": "no",
    "save_strategy": "no",
    "report_to": "none",
    "disable_tqdm": True,
    "use_cpu": True,
}

_NUM_RESAMPLES = 5_000
_MIN_WIDTH = 120  # a table stays whole where there is no terminal


def hardware() -> dict[str, Any]:
    """Describes the machine and the versions that figures depend on.

    Returns:
        Plain data.
    """
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "load_average": os.getloadavg(),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "transformers": transformers.__version__,
    }


def _cpu_model() -> str:
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.is_file() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def spread(values: ArrayLike) -> dict[str, float]:
    """Sums repetitions up.

    Args:
        values: `[num_repetitions]`.

    Returns:
        Their `median`, `min` and `max`.
    """
    array = np.asarray(values, dtype=np.float64)
    return {"median": float(np.median(array)), "min": float(array.min()), "max": float(array.max())}


def paired_ratio(numerators: ArrayLike, denominators: ArrayLike) -> dict[str, float]:
    """Compares two series that were measured in turns, pair by pair, so that the machine's drift cancels.

    Args:
        numerators: `[num_pairs]`.
        denominators: `[num_pairs]`: what was measured beside each of them.

    Returns:
        The `median` of the ratios, `low` and `high` ends of its 95 % bootstrap interval, `min` and `max` of the
        ratios, and `num_pairs`.
    """
    ratios = np.asarray(numerators, dtype=np.float64) / np.asarray(denominators, dtype=np.float64)
    picks = np.random.default_rng(0).integers(0, len(ratios), size=(_NUM_RESAMPLES, len(ratios)))
    low, high = np.quantile(np.median(ratios[picks], axis=1), [0.025, 0.975]).tolist()
    return {**spread(ratios), "low": low, "high": high, "num_pairs": len(ratios)}


def rotated(names: Sequence[str], round_number: int) -> list[str]:
    """Gives the order in which competitors have their turns, so that each comes first and last equally often.

    Args:
        names: The competitors.
        round_number: Which round, from 0.

    Returns:
        The names, shifted, and reversed in every second cycle.
    """
    cycle, shift = divmod(round_number, len(names))
    order = [*names[shift:], *names[:shift]]
    return order[::-1] if cycle % 2 else order


def new_parser(text: str | None) -> argparse.ArgumentParser:
    """Makes the parser of a benchmark, with the options that all have.

    Args:
        text: What the benchmark is, from its docstring.

    Returns:
        The parser, which has `--json` and `--quick`.
    """
    parser = argparse.ArgumentParser(description=text, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", metavar="FILE", help="where all figures are written")
    parser.add_argument("--quick", action="store_true", help="small and few, for a test; its figures mean nothing")
    return parser


def in_words(ratio: Mapping[str, float] | None, digits: int = 3) -> str:
    """Writes a paired ratio.

    Args:
        ratio: What `paired_ratio` gave; `None` writes nothing.
        digits: Decimals.

    Returns:
        The median, with the interval in brackets.
    """
    if ratio is None:
        return ""
    return f"{ratio['median']:.{digits}f} ({ratio['low']:.{digits}f} to {ratio['high']:.{digits}f})"


def show(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Prints a table.

    Args:
        title: What it shows.
        columns: Headings; the first column is text, the others are numbers.
        rows: The cells.
    """
    table = Table()
    for number, column in enumerate(columns):
        table.add_column(column, justify="right" if number else "left")
    for row in rows:
        table.add_row(*row)
    console = Console()
    console.width = max(console.width, _MIN_WIDTH)
    console.print(title, table, sep="\n", highlight=False)


def write_json(path: str | None, figures: dict[str, Any]) -> None:
    """Writes the figures, beside what they depend on.

    Args:
        path: The file; `None` writes nothing.
        figures: Plain data.
    """
    if path is not None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(json.dumps({"hardware": hardware(), **figures}, indent=2) + "\n")
