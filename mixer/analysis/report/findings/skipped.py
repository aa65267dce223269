"""Samples that could not be loaded."""

from mixer.analysis.report.findings.finding import Finding, about_streams
from mixer.analysis.report.run import Run


def skipped(run: Run) -> Finding | None:
    """Finds streams of which samples were left out, because they could not be loaded.

    Args:
        run: The run.

    Returns:
        The finding, or `None`.
    """
    counts: dict[str, tuple[int, int]] = {}
    for name, rows in run.streams.items():
        last = rows.iloc[-1]
        if last["skipped"] > 0:
            counts[name] = int(last["skipped"]), int(last["seen"])
    told = {
        name: f"{number:,} of the {seen:,} samples drawn from {name} ({number / seen:.2%})"
        for name, (number, seen) in sorted(counts.items(), key=lambda one: -one[1][0] / one[1][1])
    }
    return about_streams("skipped", run.name, told, "Samples could not be loaded and were left out")
