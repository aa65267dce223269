"""Why a step had so many samples."""

from dataclasses import dataclass, field

from mixer.analysis.explain.replay import replay_schedule
from mixer.ledger.recorded_run import RecordedRun
from mixer.mixture.rebuild import schedule_from
from mixer.policies.contract import Terms


@dataclass(frozen=True)
class SizeExplained:
    """Why a step had so many samples.

    Args:
        schedule: The name of the batch-size schedule, as recorded.
        before: The size of the step before, or `None`.
        asked: The size of this one.
        total: Its samples: fewer at the end of an epoch or of the run.
        learning_rate_factor: What the size multiplied the learning rate by.
        terms: What the schedule remembers, where it was replayed.
        note: Whether it was replayed.
    """

    schedule: str
    before: int | None
    asked: int
    total: int
    learning_rate_factor: float
    terms: Terms = field(default_factory=dict)
    note: str = ""


def explain_size(run: RecordedRun, row: int) -> SizeExplained:
    """Explains the size of a step.

    Args:
        run: The run.
        row: The row of the step.

    Returns:
        The explanation.
    """
    described = run.description.get("batch_size")
    name = described.get("class_path", "unknown") if isinstance(described, dict) else "unknown"
    sizes = run.clock["batch_size"]
    terms: Terms = {}
    try:
        terms, note = _replay(run, row)
    except (ValueError, TypeError) as error:
        note = f"Not replayed: {str(error).rstrip('.')}."
    return SizeExplained(
        schedule=name,
        before=int(sizes[row - 1]) if row else None,
        asked=int(sizes[row]),
        total=int(run.clock["total"][row]),
        learning_rate_factor=float(run.clock["learning_rate_factor"][row]),
        terms=terms,
        note=note,
    )


def _replay(run: RecordedRun, row: int) -> tuple[Terms, str]:
    description = run.description
    if not description:
        raise ValueError(run.why_undescribed)
    schedule = schedule_from(description["batch_size"])
    if run.steps[0] != 1:
        raise ValueError(f"the ledger begins with step {run.steps[0]}")
    found = replay_schedule(run, row, schedule, int(description["initial_batch_size"]), int(description["world_size"]))
    if not found.differing:
        return found.terms, "Replayed exactly."
    return found.terms, f"Other than the schedule decides, and so set by hand, as of step {found.differing[0]}."
