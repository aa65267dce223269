"""Safeguard: your weights, and a policy's mixture as far as it does the objective good."""

import logging
import math
from dataclasses import replace

import numpy as np

from mixer.measurements import Alignment, TargetStatistics, asked
from mixer.policies.contract import Decision, Mixture, Observation, Policy, Terms, terms_of
from mixer.policies.objective import Objective
from mixer.policies.shared.harm import LEAST_KEPT, Harm
from mixer.policies.shared.memory import Memory
from mixer.policies.shared.multipliers import Multipliers
from mixer.policies.shared.repeated import REPEAT_PASSES, passes, planned, within_ends
from mixer.policies.shared.shares import share_out, shares
from mixer.policies.shared.wrapper import Wrapper
from mixer.utils.arrays import FloatArray
from mixer.utils.ranges import check_count, check_range

_RATE = 0.7  # of the way to what the evidence says, at a measurement
_LEAST_CHANGE = 0.01  # of a share that a policy seems to want more of
_SHARPNESS = 6.0  # of the smooth maximum, per unit of loss: at 3 the worst of four targets was hardly sampled more
_logger = logging.getLogger(__name__)


class Safeguard(Wrapper):
    """Follows a policy as far as there is evidence that its mixture does the declared objective good.

    Ours. A run begins with your weights; below is the one exception. A measurement of the targets says what
    a sample of each stream is worth for the objective: `s_k`, with a standard error; see `MarginalValue`. The
    *candidate* is the mixture that would be executed if the policy were followed in whole: its decision, and the part
    of the targets below. It was decided before the measurement, so the gain `Σ_k (w_k − w⁰_k) s_k` over your weights
    w⁰ is independent evidence. The worth of repeated rows counts as what the run has shown is left of it; see `Memory`.
    The gains of the last measurements are added up. Two standard errors of the sum are no evidence. Above that, 0.7 of
    the way is gone at each measurement to the share that noise does not explain, `1 − 1/z²` for z standard errors. A
    mixture that is followed stays while nothing speaks against it, and goes back by the same rule where gains are
    negative.

    Three signs of harm bring your weights back at once:

    - the gain is surely negative;
    - the objective's loss on the development rows, averaged over three measurements, is 1 % or more above its lowest
      such average since the policy was followed, and the gain is not surely positive;
    - a target's loss on the test rows has risen by a tenth or more against that on the development rows, since
      the first measurement. Both are of the same rows each time. Development rows stand in a stream then, or are too
      few; the log names the target and the stream once.

    Each must exceed `√(z² + 2 log n)` standard errors, after n such comparisons (n² for the loss, whose lowest average
    is one of n): by the union bound a run of any length harms by chance alone as rarely as a single comparison at z,
    the `threshold`. Then evidence is gathered anew, and after n such harms the way is gone n + 1 times as slowly.

    A stream that is a target itself is what the objective is about, and the mixture of such streams by importance gives
    an unbiased gradient of it: so `target_share` of the candidate is drawn by importance as far as the targets are
    streams, and the policy divides the rest. Where the objective is the average or the worst of
    all streams, that part is the whole batch: nothing else is asked. The part of a stream that the run would pass over
    more than once is smaller, by the measured rate: see `planned`. A bound adds its multiplier to the importance of its
    stream; see `MarginalValue`. Where all targets are streams and the candidate passes at most three times over each of
    them, it is followed from step 2 on: rows of the target that are hardly repeated need no measurement to be worth it,
    and in a short run none would be sure in time. The signs of harm hold as ever.

    Samples on top of the batch size, as some replay policies want, are given from the start, in whole, until they harm.

    Args:
        policy: The inner policy.
        target_share: Share of the candidate that streams which are targets have at least, if all targets are streams.
        threshold: `z`: standard errors that would count as harm in a single comparison.
        num_kept: Measurements of worth that are averaged, 3 or more.

    Raises:
        ValueError: If a value is outside its range.
    """

    remembered = (
        *("_candidate", "_importance", "_multipliers", "_harm", "_memory"),
        *("_num_harms", "_followed", "_has_told", "_passes"),
    )

    def __init__(self, policy: Policy, target_share: float = 0.75, threshold: float = 3.0, num_kept: int = 6):
        super().__init__(policy)
        check_range("target_share", target_share, 0, 1, "0 leaves all to the policy")
        check_range("threshold", threshold, 0, 100, "3 standard errors are usual")
        check_count("num_kept", num_kept, LEAST_KEPT, "6 measurements are usual")
        self.target_share, self.threshold, self.num_kept = target_share, threshold, num_kept
        needs = policy.needs if asked(policy.needs, Alignment) else (Alignment(joined=True), *policy.needs)
        self.needs = tuple(replace(need, test_losses=True) if isinstance(need, Alignment) else need for need in needs)
        self.holds_bounds = True

    def start(self, mixture: Mixture) -> Decision:
        """Starts the inner policy, and the run with your weights; see `Policy.start`."""
        self._objective = mixture.objective or Objective(list(mixture.names))
        self._own, self._names, self._ends = mixture.weights, mixture.names, mixture.ends
        self._num_samples, names = mixture.num_samples, self._objective.names
        self._target_of = np.array([names.index(name) if name in names else -1 for name in mixture.names])
        self._importance = self._objective.weights(np.full(len(names), np.nan), _SHARPNESS)
        self._multipliers, importance = Multipliers(self._objective), self._of_streams(self._importance)
        is_all = not self._objective.bounds and (importance > 0.0).all()
        self._share = 1.0 if is_all and self.target_share > 0.0 else self.target_share
        self._harm = Harm(len(names), self.threshold, self.num_kept)
        self._memory = Memory(mixture, self._objective, REPEAT_PASSES)
        self._num_harms, self._followed, self._has_told, self._passes = 0, 0.0, False, np.zeros(len(mixture.names))
        decision = self._anchored(super().start(mixture), 0.0, mixture)
        self._candidate = shares(np.asarray(decision.weights))
        return decision if decision.additional is not None else Decision(self._own)

    def explain(self) -> Terms:
        """Gives how far the policy is followed, why, and the planned passes over streams; see `Policy.explain`."""
        terms = terms_of(self._multipliers.state_dict()) | self._harm.terms
        passes = {"planned passes": self._passes, "memory": self._memory.rates}
        return terms | {"followed": self._followed, "drawn as targets": self._followed * self._anchor, **passes}

    def update(self, observation: Observation) -> Decision:
        """Passes on the inner policy's decision, as far as it is followed; see `Policy.update`."""
        decision = super().update(observation)
        num_samples = observation.seen.sum() / observation.progress if observation.progress > 0.0 else 0.0
        if (targets := observation[Alignment]) is not None:
            self._judge(targets, num_samples, observation)
        decision = self._anchored(decision, num_samples, observation)
        self._candidate = shares(np.asarray(decision.weights))
        if observation.step == 1 and self._is_fresh(num_samples):
            self._followed = 1.0
            words = "All targets are streams: from step 2 on, %.0f %% of each batch is drawn from them, unmeasured yet."
            _logger.warning(words, 100.0 * self._anchor.sum())
        decision = self._blended(decision, observation)
        weights = shares(np.asarray(decision.weights))
        if decision.additional is None:
            weights = within_ends(weights, self._ends, observation)
        self._passes = passes(observation.seen + weights * (num_samples - observation.seen.sum()), self._num_samples)
        return replace(decision, weights=weights)

    def _blended(self, decision: Decision, observation: Observation) -> Decision:
        """The decision as far as it is followed, and for the rest your weights."""
        active, lengths = observation.is_active & (self._own > 0.0), observation.tokens_per_sample
        is_whole = decision.additional is not None and (self._followed > 0.0 or not self._num_harms)
        if self._followed == 1.0 or is_whole:
            return decision
        own = share_out(self._own, self._own, active, 0.0, lengths)
        if self._followed == 0.0:
            return Decision(own)
        weights = (1.0 - self._followed) * own + self._followed * shares(np.asarray(decision.weights))
        return replace(decision, weights=weights)

    def _anchored(self, decision: Decision, num_samples: float, seen: Mixture | Observation) -> Decision:
        """Draws a part of the batch by the importance of the streams that are targets.

        Args:
            decision: The inner policy's.
            num_samples: Samples of the whole run, 0 if unknown.
            seen: Where the run is.
        """
        active, lengths = seen.is_active, seen.tokens_per_sample if isinstance(seen, Observation) else None
        anchor = self._share * np.where(active & (self._own > 0.0), self._of_streams(self._importance), 0.0)
        anchor *= planned(passes(anchor * num_samples, self._num_samples), self._memory.rates)
        self._anchor = anchor
        if not anchor.any():
            return decision
        weights = anchor + max(0.0, 1.0 - anchor.sum()) * shares(np.asarray(decision.weights))
        return replace(decision, weights=share_out(weights, self._own, active & (self._own > 0.0), 0.0, lengths))

    def _is_fresh(self, num_samples: float) -> bool:
        """Whether all targets are streams whose rows the candidate repeats so seldom that they still teach.

        Args:
            num_samples: Samples of the whole run, 0 if unknown.
        """
        importance = self._of_streams(self._importance)
        num_passes = passes(self._candidate * num_samples, self._num_samples)[importance > 0.0]
        are_streams = self._share > 0.0 and math.isclose(importance.sum(), 1.0)
        return are_streams and num_samples > 0.0 and bool((num_passes <= REPEAT_PASSES).all())

    def _of_streams(self, importance: FloatArray) -> FloatArray:
        """`[num_streams]`: the importance of the streams that are targets, 0 for the others."""
        return np.where(self._target_of >= 0, importance[self._target_of], 0.0)

    def _judge(self, targets: TargetStatistics, num_samples: float, observation: Observation) -> None:
        """Finds how far the policy is followed from now on.

        Args:
            targets: The measurement.
            num_samples: Samples of the whole run.
            observation: The observation that it came with.
        """
        importance = self._objective.weights(targets.losses, _SHARPNESS)
        self._importance = shares(importance + self._multipliers.take(targets.losses, observation.progress))
        self._memory.take(targets, importance, observation.seen)
        self._take_worth(targets, num_samples, observation)
        reason = self._harm_of(targets, importance)
        if reason is not None and self._followed > 0.0:
            self._followed, self._num_harms = 0.0, self._num_harms + 1
            self._harm.forget()
            words = "Step %d: %s is not followed for a while, and the streams' own weights apply: %s."
            _logger.warning(words, observation.step, self.name, reason)
        elif reason is None:
            trust = self._harm.trust
            goal = max(self._followed, trust) if trust > 0.0 else min(self._followed, 1.0 + trust)
            self._followed += _RATE / (1 + self._num_harms) * (goal - self._followed)

    def _take_worth(self, targets: TargetStatistics, num_samples: float, observation: Observation) -> None:
        """Takes what the candidate is worth above your weights, at the passes in the middle of theirs."""
        worth = targets.worth(self._importance)
        to_come = (self._candidate + self._own) / 2.0 * (num_samples - observation.seen.sum())
        num_passes = passes(observation.seen + to_come, self._num_samples)
        scores = self._memory.discounted(worth.scores, num_passes)
        self._harm.take_worth(worth._replace(scores=scores), self._candidate - self._own)

    def _harm_of(self, targets: TargetStatistics, importance: FloatArray) -> str | None:
        """Says which sign of harm there is, `None` for none."""
        used = importance > 0.0
        is_known = np.isfinite(targets.losses[used]).all()
        loss = float(importance[used] @ targets.losses[used]) if is_known else math.nan
        target, risen = self._harm.by_gap(targets, importance), self._harm.by_loss(loss, self._followed > 0.0)
        if target is not None:
            name = self._objective.names[target]
            self._tell_once(name)
            return f"the loss of {name!r} has risen on test rows, not on development rows"
        is_less = self._harm.gain < -1.0
        return "by the targets' gradients its mixture is worth less than they are" if is_less else risen

    def _tell_once(self, target: str) -> None:
        change = self._candidate - self._own
        if not self._has_told and change.max() > _LEAST_CHANGE:
            words = "Rows of %r seem to stand in %r: its loss falls on the development rows, and less on test rows."
            _logger.warning(words, target, self._names[int(change.argmax())])
            self._has_told = True
