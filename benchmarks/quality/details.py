"""What the table of a mixture leaves out: weights over the run, and how far the streams' gradients conflict."""

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from benchmarks.presenting import present
from benchmarks.quality.conflict import KINDS
from benchmarks.quality.policies import PROPORTIONAL
from benchmarks.quality.report import GRID, Result, Results, quality
from benchmarks.quality.runs import PLACES


def show_details(results: Results) -> None:
    """Prints three tables in Markdown; figures are means over the seeds, the grid is left out.

    Args:
        results: The results of a mixture.
    """
    runs = {name: list(own.values()) for name, own in results.items() if not name.startswith(GRID)}
    base = results.get(PROPORTIONAL, {})
    rows = [[name, *_differences(results[name], base)] for name in runs]
    present(f"Losses less those of {PROPORTIONAL}", ["policy", "average", "worst"], rows, True)
    places = [f"at {100 * place:.0f} %" for place in PLACES]
    rows = [
        [name, *_weights(own), _by_stream(run["test_losses"].values() for run in own)] for name, own in runs.items()
    ]
    present("Weights over the run, and losses at its end", ["policy", *places, "losses"], rows, True)
    rows = [[name, *cells] for name, own in runs.items() if (cells := _conflict(own))]
    present("Conflict and alignment of the gradients", ["policy", *KINDS.values()], rows, True)


def _differences(own: Mapping[int, Result], base: Mapping[int, Result]) -> list[str]:
    cells = []
    for kind in ("average", "worst"):
        values = [quality(own[seed])[kind] - quality(base[seed])[kind] for seed in own.keys() & base.keys()]
        deviation = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
        cells.append(f"{np.mean(values):+.3f}{deviation}" if values else "")
    return cells


def _weights(runs: Sequence[Result]) -> list[str]:
    return [_by_stream([own[at] for own in run["weights"].values()] for run in runs) for at in range(len(PLACES))]


def _by_stream(values: Iterable[Iterable[float]]) -> str:
    """Writes means over the seeds, stream by stream."""
    return " / ".join(f"{mean:.2f}" for mean in np.mean([list(own) for own in values], axis=0))


def _conflict(runs: Sequence[Result]) -> list[str]:
    seen = [run["gradients"] for run in runs if run.get("gradients") is not None]
    return [f"{np.mean([one[kind] for one in seen]):.2f}" for kind in KINDS] if seen else []
