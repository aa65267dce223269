"""A policy, and a batch-size schedule, led once more through what they saw."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from mixer.analysis.explain.levels import Level, levels_of, watched
from mixer.analysis.explain.observations import batch_observation_after, observation_after
from mixer.ledger.recorded_run import RecordedRun
from mixer.mixture.batch_size import BatchSize
from mixer.mixture.weights import MixtureWeights
from mixer.policies import Policy
from mixer.policies.shared.terms import Terms, terms_of
from mixer.schedules import Schedule
from mixer.utils.arrays import FloatArray

TOLERANCE = 1e-9


@dataclass(frozen=True)
class Replay:
    """What a policy decides, replayed.

    Args:
        decided: `[num_streams]`: its weights for the step, which sum to 1.
        levels: What each of its levels decided, the innermost first.
        differing: Steps up to that one whose recorded weights are other ones, ascending.
        agrees_later: Whether recorded weights are the policy's again after the step, where they are not in it.
    """

    decided: FloatArray
    levels: Sequence[Level]
    differing: Sequence[int]
    agrees_later: bool

    @property
    def is_exact(self) -> bool:
        """Whether every step up to that one had the weights that the policy decides."""
        return not self.differing


def replay_policy(run: RecordedRun, row: int, policy: Policy) -> Replay:
    """Leads a policy through a run up to a step.

    Args:
        run: The run, recorded from its first step on.
        row: The row of the step.
        policy: The policy, which is changed.

    Returns:
        What it decides.

    Raises:
        ValueError: If the ledger does not begin with the first step, or the policy does not fit the streams.
    """
    if run.steps[0] != 1 or run.steps[row] != row + 1:
        raise ValueError(f"the ledger does not hold all steps before: it begins with step {run.steps[0]}")
    mixture, outer = run.mixture(), watched(policy)
    weights = MixtureWeights(outer, mixture, mixture.active)
    differing: list[int] = []
    for at in range(row + 1):
        if not _agree(run, at, weights):
            differing.append(at + 1)
        if at < row:
            _show(run, at, weights)
    decided, levels = weights.value.copy(), levels_of(outer)
    agrees_later = False
    if row + 1 in differing:
        for later in range(row, len(run.steps) - 1):
            _show(run, later, weights)
            if agrees_later := _agree(run, later + 1, weights):
                break
    return Replay(decided, levels, differing, agrees_later)


def _show(run: RecordedRun, row: int, weights: MixtureWeights) -> None:
    """Shows a policy what it saw after a step, the evaluations before that step too."""
    for name, loss in run.evaluations.get(row, ()):
        weights.observe_evaluation({name: loss})
    lengths = weights.tokens_per_sample(run.streams["seen"][row], run.num_tokens[row])
    needs = weights.policy.needs
    weights.update(lambda evaluation: observation_after(run, row, needs, lengths, evaluation), row + 1)


def _agree(run: RecordedRun, row: int, weights: MixtureWeights) -> bool:
    """Whether weights, and factors on losses, are those that were recorded of a step."""
    own = np.array([stream["loss_weight"] for stream in run.description["streams"]], dtype=np.float64)
    factors = own if weights.loss_weights is None else own * weights.loss_weights
    pairs = ((weights.value, run.streams["policy_weight"][row]), (factors, run.streams["loss_weight"][row]))
    return all(np.abs(decided - recorded).max() <= TOLERANCE for decided, recorded in pairs)


@dataclass(frozen=True)
class SizeReplay:
    """What a batch-size schedule decides, replayed.

    Args:
        decided: Samples of the step, as far as epoch and budget have as many left.
        differing: Steps up to that one that had another size, ascending.
        terms: What the schedule remembers.
    """

    decided: int
    differing: Sequence[int]
    terms: Terms


def replay_schedule(run: RecordedRun, row: int, schedule: Schedule, initial: int, world_size: int) -> SizeReplay:
    """Leads a batch-size schedule through a run up to a step.

    Args:
        run: The run, recorded from its first step on.
        row: The row of the step.
        schedule: The schedule, which is changed.
        initial: The size that the run began with.
        world_size: Number of its ranks.

    Returns:
        What it decides.

    Raises:
        ValueError: If it goes by what the ledger does not hold.
    """
    missing = schedule.needs & {"learning_rate"} or (world_size > 1 and schedule.needs & {"gradient_noise"})
    if missing:
        raise ValueError(f"it goes by {sorted(missing)}, which the ledger does not hold")
    size = BatchSize(schedule, initial, world_size)
    differing = []
    for before in range(row + 1):
        if size.value != run.clock["batch_size"][before]:
            differing.append(before + 1)
        if before < row:
            size.update(batch_observation_after(run, before, schedule.needs))
    return SizeReplay(size.value, differing, terms_of(schedule.state_dict()))
