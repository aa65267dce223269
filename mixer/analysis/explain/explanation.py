"""Why a step was what it was: everything that led to its counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from mixer.analysis.explain.batch_size import SizeExplained, explain_size
from mixer.analysis.explain.levels import Level
from mixer.analysis.explain.notes import on_counts, on_replay, on_weights
from mixer.analysis.explain.replay import Replay, replay_policy
from mixer.analysis.explain.tables import counts_of, measured_before, observed_of, weights_of
from mixer.ledger.recorded_run import RecordedRun
from mixer.mixture.rebuild import policy_from
from mixer.policies import Policy


@dataclass(frozen=True)
class Explanation:
    """Why a step was what it was.

    Args:
        run: The run's folder.
        step: Number of the step.
        progress: Share of the run that was done before it.
        policy: The name of what ruled the weights, as recorded.
        observed: One row a stream: what the step before showed; empty for the first.
        evaluated_at: Steps done before the last evaluation that the decision knew, or `None`.
        measured_at: The last step before whose gradients were measured, or `None`.
        levels: What each level of the policy decided, the innermost first; empty where it was not replayed.
        weights: One row a stream: policy_weight (decided), tokens_per_sample (NaN where the unit is samples), there,
            and weight, the share of the samples.
        counts: One row a stream: asked (share × total), carried, owed (their sum), count, left (owed afterwards).
        total: Samples of the step.
        size: What decided how many.
        notes: Sentences: whether the decision was replayed, and what else moved the weights.
        is_replayed: Whether the weights are those that the policy decides, in this step and all before it.
    """

    run: Path
    step: int
    progress: float
    policy: str
    observed: pd.DataFrame
    evaluated_at: int | None
    measured_at: int | None
    levels: Sequence[Level]
    weights: pd.DataFrame
    counts: pd.DataFrame
    total: int
    size: SizeExplained
    notes: Sequence[str]
    is_replayed: bool


def explain(run: str | Path, step: int, policy: Policy | None = None) -> Explanation:
    """Explains the mixture of a step by a run's ledger.

    Args:
        run: The output folder of a trainer.
        step: Number of the step, from 1.
        policy: The policy of the run, newly made with the same arguments, where it is no plain data; `None` makes it of
            the run's description. It is changed.

    Returns:
        The explanation.

    Raises:
        ValueError: If the folder is none, holds no run, or no such step; or if the policy is not the recorded one.

    Example:
        >>> explain("runs/demo/adaptive", 120).weights  # doctest: +SKIP
    """
    recorded = RecordedRun(run)
    _check_policy(recorded, policy)
    row = recorded.row_of(step)
    replay, reason = _replayed(recorded, row, policy)
    weights, counts = weights_of(recorded, row), counts_of(recorded, row)
    notes = [
        on_replay(recorded, row, replay, reason),
        *on_weights(recorded, row, weights),
        *on_counts(recorded, row, counts),
    ]
    return Explanation(
        run=recorded.folder,
        step=step,
        progress=float(recorded.clock["progress"][row - 1]) if row else 0.0,
        policy=recorded.policy_name or "unknown",
        observed=observed_of(recorded, row),
        evaluated_at=max((at for at in recorded.evaluations if at < step - 1), default=None),
        measured_at=measured_before(recorded, step),
        levels=[] if replay is None else replay.levels,
        weights=weights,
        counts=counts,
        total=int(recorded.clock["total"][row]),
        size=explain_size(recorded, row),
        notes=notes,
        is_replayed=replay is not None and replay.is_exact,
    )


def _replayed(run: RecordedRun, row: int, policy: Policy | None) -> tuple[Replay | None, str]:
    """Replays the policy; else says why that cannot be done."""
    if not run.description:
        return None, run.why_undescribed
    if not run.has_same_streams:
        return None, "the run went on, from a checkpoint, with other streams than it began with"
    if np.isnan(run.streams["policy_weight"][: row + 1]).any():
        return None, "an older version wrote steps before, which do not hold what it decided"
    try:
        made = policy_from(run.description["mixing"]) if policy is None else policy
        return replay_policy(run, row, made), ""
    except (ValueError, TypeError) as error:
        return None, str(error).rstrip(".")


def _check_policy(run: RecordedRun, policy: Policy | None) -> None:
    """Refuses a policy by whose terms another one's decisions would be told."""
    if policy is not None and run.policy_name not in (None, policy.name):
        raise ValueError(
            f"policy={policy.name} did not rule the run in {run.folder}: its ledger says {run.policy_name}. Give that "
            "one, with the arguments that it had, or none."
        )
