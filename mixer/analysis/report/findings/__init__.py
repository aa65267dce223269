"""Findings: rules that each report a problem of a run in one sentence with its figure."""

from collections.abc import Callable, Sequence

from mixer.analysis.report.findings.changed import changed
from mixer.analysis.report.findings.conflict import in_conflict
from mixer.analysis.report.findings.finding import Finding
from mixer.analysis.report.findings.learning import getting_worse, no_longer_learning, overfitting
from mixer.analysis.report.findings.streams import not_finite, over_repeated, skipped, starved
from mixer.analysis.report.findings.time_spent import loading_bound, probing_bound, unforeseen
from mixer.analysis.report.run import Run

# In the order of the page: the gravest first.
_RULES: tuple[Callable[[Run], Finding | None], ...] = (
    not_finite,
    skipped,
    starved,
    over_repeated,
    overfitting,
    getting_worse,
    no_longer_learning,
    in_conflict,
    loading_bound,
    unforeseen,
    probing_bound,
)

__all__ = ["Finding", "changed", "findings_of"]


def findings_of(runs: Sequence[Run]) -> list[Finding]:
    """Applies all rules to all runs.

    Returns:
        The findings, run by run; empty if there are no problems.
    """
    return [found for run in runs for rule in _RULES if (found := rule(run)) is not None]
