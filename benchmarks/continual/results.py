"""Results of `benchmarks.continual`: a file for each run, and a table of rows with what was published beside ours."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import isnan
from pathlib import Path
from statistics import fmean, median, stdev

from benchmarks.common import hardware
from benchmarks.continual.protocols import PROTOCOLS
from benchmarks.presenting import markdown
from benchmarks.quality.cache import write_whole
from tasks.continual.continual_checks import Optimizer

Figures = Mapping[str, float]
_COLUMNS = (
    *("protocol", "method", "memory", "seeds", "ACC or loss", "published", "forgetting"),
    *("CPU s per seed", "peak MB", "kept kB", "samples/s at first", "last / first"),
)
_BYTES, _RATES = {"growth_bytes": 1e6, "kept_bytes": 1e3}, {"first_rate": ",.0f", "last_over_first": ".2f"}


@dataclass(frozen=True)
class Run:
    """A run of a row.

    Args:
        protocol: Name of the protocol.
        method: Name of the method.
        memory: Entries of its memory, 0 without one.
        seed: The seed.
        ranks: Number of processes.
        optimizer: `"fresh"` or `"kept"`; `None` for the method's own.
    """

    protocol: str
    method: str
    memory: int
    seed: int
    ranks: int = 1
    optimizer: Optimizer | None = None

    def path(self, folder: Path) -> Path:
        """Names the file of its result.

        Args:
            folder: The folder of the results.
        """
        own = "" if self.optimizer is None else f"-{self.optimizer}"
        return folder / self.protocol / f"{self.method}-{self.memory}-seed-{self.seed}-ranks-{self.ranks}{own}.json"

    def write(self, folder: Path, figures: Figures) -> None:
        """Writes its result.

        Args:
            folder: The folder of the results.
            figures: What was measured.
        """
        content = {"hardware": hardware(), "run": asdict(self), "figures": figures}
        write_whole(self.path(folder), json.dumps(content, indent=2).encode())


def report(folder: Path, protocols: Sequence[str], methods: Sequence[str]) -> str:
    """Sums up all results that there are.

    Args:
        folder: The folder of the results.
        protocols: The protocols to report.
        methods: The methods to report.

    Returns:
        A table in Markdown, a row a method and size of its memory.
    """
    rows: dict[Run, list[Figures]] = {}
    for path in sorted(path for name in protocols for path in (folder / name).glob("*.json")):
        found = json.loads(path.read_text())
        rows.setdefault(Run(**{**found["run"], "seed": 0}), []).append(found["figures"])
    order = {name: number for number, name in enumerate((*protocols, *methods))}
    chosen = sorted(
        (row for row in rows if row.method in methods),
        key=lambda row: (order[row.protocol], order[row.method], row.memory, row.ranks, row.optimizer or ""),
    )
    return markdown(_COLUMNS, [_cells(row, rows[row]) for row in chosen])


def _cells(row: Run, runs: Sequence[Figures]) -> list[str]:
    protocol, digits = PROTOCOLS[row.protocol], 3 if PROTOCOLS[row.protocol].is_text else 1
    scores, of = [own["average_accuracy"] for own in runs], {name: [own[name] for own in runs] for name in runs[0]}
    spread = f" ± {stdev(scores):.{digits}f}" if len(scores) > 1 else ""
    return [
        row.protocol if row.ranks == 1 else f"{row.protocol}, {row.ranks} ranks",
        row.method if row.optimizer is None else f"{row.method}, {row.optimizer}",
        f"{row.memory:,}" if row.memory else "",
        str(len(runs)),
        f"{fmean(scores):.{digits}f}{spread}",
        protocol.published.get((row.method, row.memory), ""),
        "" if isnan(fmean(of["forgetting"])) else f"{fmean(of['forgetting']):.{digits}f}",
        f"{fmean(of['seconds']):.0f}",
        *(f"{fmean(of[name]) / unit:,.0f}" if name in of else "" for name, unit in _BYTES.items()),
        *(f"{median(of[name]):{form}}" if name in of else "" for name, form in _RATES.items()),
    ]
