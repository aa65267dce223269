"""Findings: rules that each report a problem of a run in one sentence with its figure."""

from collections.abc import Callable, Iterable, Sequence

from mixer.tools.records.run import Run
from mixer.tools.report.findings.finding import Finding, combined
from mixer.tools.report.findings.learning import getting_worse, held_back, no_longer_learning, overfitting
from mixer.tools.report.findings.rules import in_conflict, not_finite, over_repeated, skipped, starved

# Kind, beginning of the sentence, and rule, in the order of the page: the gravest first.
_RULES: tuple[tuple[str, str, Callable[[Run], Iterable[Finding]]], ...] = (
    ("not finite", "The loss was not finite: ", not_finite),
    ("skipped", "Samples could not be loaded and were skipped: ", skipped),
    ("starved", "Far too few samples of a stream were used: ", starved),
    ("over-repeated", "Repeated too often: ", over_repeated),
    ("overfitting", "The validation loss rises while the training loss falls: ", overfitting),
    ("held back", "The policy took share from what overfits: ", held_back),
    ("getting worse", "The validation loss rises: ", getting_worse),
    ("no longer learning", "A loss has stopped falling: ", no_longer_learning),
    ("in conflict", "Gradients pull against each other: ", in_conflict),
)

__all__ = ["Finding", "findings_of"]


def findings_of(runs: Sequence[Run]) -> list[Finding]:
    """Applies all rules to all runs.

    Returns:
        The findings, run by run; empty if there are no problems.
    """
    results = [(kind, run, beginning, list(rule(run))) for run in runs for kind, beginning, rule in _RULES]
    return [combined(kind, run.name, beginning, found) for kind, run, beginning, found in results if found]
