"""What there is to say of a decision beside its numbers."""

import numpy as np
import pandas as pd

from mixer.analysis.explain.replay import TOLERANCE, Replay
from mixer.ledger.recorded_run import RecordedRun


def on_replay(run: RecordedRun, row: int, replay: Replay | None, reason: str) -> str:
    """Says whether the recorded weights are what the policy decides.

    Args:
        run: The run.
        row: The row of the step.
        replay: The policy's replay, or `None`.
        reason: Why there is none.

    Returns:
        A sentence.
    """
    step = int(run.steps[row])
    if replay is None:
        return f"Not replayed: {reason}. What follows is as recorded; the policy's own terms are not known."
    if replay.is_exact:
        return f"Replayed exactly: in each of the steps 1 to {step} the policy decides what was recorded."
    first = replay.differing[0]
    if step not in replay.differing:
        return (
            f"Replayed exactly in this step; {len(replay.differing)} before it, from {first} on, had weights that "
            "the policy does not decide: they were set by hand."
        )
    if replay.agrees_later or _is_held(run, row, replay):
        return (
            f"Set by hand: these are not the weights that the policy decides, which are shown with its terms "
            f"(first so in step {first})."
        )
    return (
        f"As of step {first} the recorded weights are not those that the policy decides here: they were put there by "
        "hand, or the run was resumed inexactly or with other code. The policy's terms below may not be its own."
    )


def _is_held(run: RecordedRun, row: int, replay: Replay) -> bool:
    """Whether the recorded weights stay to the bit while the policy's would move, as those set by hand do."""
    recorded = run.streams["policy_weight"]
    since = row
    while since and int(run.steps[since - 1]) in replay.differing:
        since -= 1
    return row > since and bool((recorded[since : row + 1] == recorded[row]).all())


def on_weights(run: RecordedRun, row: int, weights: pd.DataFrame) -> list[str]:
    """Says what moved the weights on the way from the decision to the shares.

    Args:
        run: The run.
        row: The row of the step.
        weights: What `weights_of` gave.

    Returns:
        Sentences.
    """
    decided, lengths, shares = (weights[name].to_numpy() for name in ("policy_weight", "tokens_per_sample", "weight"))
    there = weights["active"].to_numpy(dtype=bool)
    notes = []
    if (staleness := int(run.streams["staleness"][row].max())) > 0:
        notes.append(f"The policy had not seen the last {staleness} steps when it decided.")
    if not np.isnan(lengths).any():
        notes.append("The weights are shares of tokens; divided by each stream's tokens a sample they are of samples.")
        decided = decided / lengths
    away = [
        name for name, is_active, weight in zip(weights.index, there, decided, strict=True) if weight and not is_active
    ]
    if away:
        notes.append(f"Not there, their shares go to the others: {', '.join(away)}.")
    among = np.where(there, decided, 0.0)
    expected = among / among.sum() if among.sum() > 0 else among
    is_known = run.has_same_streams and not np.isnan(expected).any()
    if is_known and np.abs(expected - shares).max() > TOLERANCE:
        names = [grouping["name"] for grouping in run.description.get("groupings", [])]
        by = f"the weights and caps of the groupings {names}" if names else "what streams had left to give"
        notes.append(f"Moved further by {by}.")
    return notes


def on_counts(run: RecordedRun, row: int, counts: pd.DataFrame) -> list[str]:
    """Says where counts are not what is owed, rounded.

    Args:
        run: The run.
        row: The row of the step.
        counts: What `counts_of` gave.

    Returns:
        Sentences.
    """
    if counts[["left", "carried"]].isna().any(axis=None):
        return ["What each stream was owed is not recorded of this step and the one before."]
    if run.description.get("drawing") == "multinomial":
        return ["Counts were drawn at random (drawing: multinomial): nothing is carried over."]
    if np.abs(counts["owed"] - counts["count"] - counts["left"]).max() > TOLERANCE:
        return ["A stream gave its last samples, left, or had some on top: remainders were shared out anew."]
    return []
