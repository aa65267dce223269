"""Short forks of a run within it: two mixtures go on from the same weights, and development rows compare them."""

import math
import time
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import islice

import numpy as np
import torch
from torch import Tensor, nn

from mixer.loading.loaded_step import MicroBatch, StepResult
from mixer.measurements import ForkGain, Forks, Results, asked
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.measurements.hooks.target_rows import TargetRows
from mixer.mixture.controller import Mixing
from mixer.mixture.step_plan import StepPlan
from mixer.mixture.streams import describe
from mixer.models.trained_state import TrainedState
from mixer.policies.objective import Objective
from mixer.policies.shared.shares import shares
from mixer.run.hooks import Observer
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import wrong_value

_FORWARD = 1 / 3  # of the work of a forward and a backward
_SHARE_OF_ROWS = 0.25  # of the work at a place: development rows, for both forks
_SHARPNESS = 6.0  # of the smooth maximum, per unit of loss, as in `Safeguard`
_LEAST_MOVE = 0.01  # of a share, below which two mixtures are the same
_LEAST_ROWS = 2  # of a target: fewer have no standard error

RowLosses = tuple[FloatArray, FloatArray]  # `[num_rows]` each: a row's summed loss, and its items


class ForkProbe(Observer):
    """Trains two short forks at some places of the run, and compares the objective's losses after them.

    From the run's weights, optimizer, random state and cursors one fork trains some steps by the mixture of the present
    step, one by your weights. Learning rates fall linearly to 0, so that the losses are those of an end.
    Every stream keeps its order, so the forks differ by their mixture alone. Afterwards the run is as it was, to the
    bit. A second copy of the trained weights and of the optimizer's state is in memory meanwhile.

    Losses are those of the first development rows of each target, the same after either fork. The standard error is
    that of the rows' differences: it does not hold how much hangs on which training rows came.

    Args:
        targets: The development rows of each target, in order.
        passes: Run the model outside of training.
        request: What is asked for.
        objective: The objective, with its targets by name.
    """

    measures = (Forks,)

    def __init__(self, targets: Sequence[TargetRows], passes: AuxiliaryPasses, request: Forks, objective: Objective):
        self._targets, self._passes, self._request, self._objective = targets, passes, request, objective
        self._rank, self._world_size = passes.trainer.args.process_index, passes.ranks.world_size
        self._own_weights = describe(passes.plan.streams).weights

    def prepare(self, model: nn.Module) -> None:
        """Refuses a run that cannot be forked; see `Observer.prepare`."""
        passes = self._passes
        passes.check_own_gradients(model, "trains forks of the run")
        mixing, name = passes.run.mixing, passes.plan.policy.name
        if mixing.weighs_losses or mixing.decision.additional is not None:
            text = f"={name} weights losses or adds samples, which its forks do not: take a policy that sets shares."
            raise wrong_value("mixing", text)
        num_samples = mixing.clock.max_steps * mixing.batch_size
        num_rows = min(self._num_rows(num_samples), *(target.num_rows for target in self._targets))
        if num_rows < _LEAST_ROWS or self._num_steps(num_samples, mixing.batch_size) < 1:
            text = f"={name} has forks of one step or more, compared on {_LEAST_ROWS} development rows of each target "
            text += f"or more, but a run of {mixing.clock.max_steps} steps does not pay for these, or there are fewer "
            raise wrong_value("mixing", f"{text}rows: train longer, or take the policy alone.")

    def observe(self, result: StepResult) -> Results:
        """Trains and compares forks at a place; see `Observer.observe`."""
        self.seconds_after, mixing, contents = 0.0, self._passes.run.mixing, result.contents
        ahead = mixing.after(result.plan, contents.tokens, contents.labels)
        before, now = mixing.clock.progress, ahead.clock.progress
        weights = result.plan.policy_weights
        is_place = any(before < place <= now for place in self._request.at) and now < 1.0
        if not is_place or mixing.manual_weights is not None or self._is_own(weights, ahead):
            return {}
        started = time.perf_counter()
        num_steps = max(1, self._num_steps(ahead.clock.num_samples / now, mixing.batch_size))
        cap = None
        while cap != self._passes.cap:  # memory may run out in one of them: both have the same micro-batches
            cap = self._passes.cap
            present, own = (self._fork(ahead, mixture, num_steps) for mixture in (weights, self._own_weights))
        self.seconds_after = time.perf_counter() - started
        return {Forks: self._compared(present, own)}

    def _is_own(self, weights: FloatArray, ahead: Mixing) -> bool:
        """Whether a mixture is that of your weights, as far as streams are active."""
        active = ahead.planner.active(ahead.clock.progress)
        present, own = (shares(np.where(active, mixture, 0.0)) for mixture in (weights, self._own_weights))
        return bool(np.abs(present - own).max() < _LEAST_MOVE)

    # ---- How much ----

    def _budget(self, num_samples: float) -> float:
        """The work at a place, in samples that go forward and back."""
        return self._request.share * num_samples / len(self._request.at)

    def _num_rows(self, num_samples: float) -> int:
        """Development rows of each target, over all ranks."""
        return int(_SHARE_OF_ROWS * self._budget(num_samples) / (2.0 * _FORWARD * len(self._targets)))

    def _num_steps(self, num_samples: float, batch_size: int) -> int:
        """Steps of a fork.

        Args:
            num_samples: Samples of the whole run.
            batch_size: Samples of a step.
        """
        rows = sum(min(target.num_rows, self._num_rows(num_samples)) for target in self._targets)
        return int((self._budget(num_samples) / 2.0 - _FORWARD * rows) / batch_size)

    # ---- A fork ----

    def _fork(self, ahead: Mixing, weights: FloatArray, num_steps: int) -> list[RowLosses]:
        """Trains a fork, and returns this rank's losses of each target's rows; the run stays as it is."""
        passes, optimizer = self._passes, self._passes.optimizer
        num_rows = self._num_rows(ahead.clock.num_samples / ahead.clock.progress)
        rates = [float(group["lr"]) for group in optimizer.param_groups]
        with passes.own_gradients(training=True) as parameters:
            kept = TrainedState(parameters, optimizer)
            try:
                for number, plan in enumerate(islice(ahead.branch(weights), num_steps)):
                    _set_rates(optimizer, [rate * (1.0 - number / num_steps) for rate in rates])
                    self._step(plan, parameters)
                return self._row_losses(num_rows)
            finally:
                kept.restore()

    def _step(self, plan: StepPlan, parameters: Sequence[nn.Parameter]) -> None:
        """Makes an optimizer step of a plan, as the run would."""
        passes = self._passes
        wanted = {
            k: plan.starts[k] + np.arange(self._rank, plan.counts[k], self._world_size, dtype=np.int64)
            for k in np.flatnonzero(plan.counts).tolist()
        }
        while not self._backward(passes.on_all_ranks(partial(passes.samples, wanted)), parameters):
            pass
        passes.average_own()
        most = passes.trainer.args.max_grad_norm
        norm = nn.utils.clip_grad_norm_(parameters, most if most and most > 0.0 else math.inf)
        if math.isfinite(float(norm)):
            passes.optimizer.step()
        for parameter in parameters:
            parameter.grad = None

    def _backward(self, micros: Sequence[MicroBatch], parameters: Sequence[nn.Parameter]) -> bool:
        """Computes this rank's gradient; returns whether it fitted into memory on all ranks."""
        passes = self._passes
        items = [int(passes.items(micro).sum()) for micro in micros]
        num_items = max(int(passes.ranks.all_reduce_sum(np.array([sum(items)]))[0]), 1)

        def backward() -> bool:
            for parameter in parameters:
                parameter.grad = None
            for micro, own in zip(micros, items, strict=True):
                passes.backward(micro, own / num_items)
            return True

        return passes.fitted(backward, micros) is not None

    # ---- Losses ----

    def _row_losses(self, most: int) -> list[RowLosses]:
        """Returns this rank's losses of each target's first rows."""
        losses = []
        with self._passes.without_gradients(training=False):
            for target in self._targets:
                positions = np.arange(self._rank, min(target.num_rows, most), self._world_size, dtype=np.int64)
                losses.append(self._passes.on_all_ranks(partial(self._losses_of, target, positions)))
        return losses

    def _losses_of(self, target: TargetRows, positions: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> RowLosses:
        parts = [self._losses_in(micro) for micro in target.micro_batches(positions, 0, self._passes)]
        return _joined(sums for sums, _ in parts), _joined(items for _, items in parts)

    def _losses_in(self, micro: MicroBatch) -> RowLosses:
        """Returns the losses of the rows of a micro-batch, which counts as a row where rows cannot be separated."""
        mean, rows = self._passes.mean_and_row_losses(micro)
        items = _numbers(self._passes.items(micro))
        if rows is None:
            return items.sum(keepdims=True) * float(mean), items.sum(keepdims=True)
        return _numbers(rows.detach()), items

    def _compared(self, present: Sequence[RowLosses], own: Sequence[RowLosses]) -> ForkGain:
        """Compares the objective after two forks, over all ranks."""
        sums = np.array([_sums(*pair) for pair in zip(present, own, strict=True)])
        totals = self._passes.ranks.add_up(torch.from_numpy(sums)).numpy()
        losses, gains, variances = paired(totals)
        weights = self._objective.weights(losses, _SHARPNESS)
        used = weights > 0.0
        gain, variance = weights[used] @ gains[used], weights[used] ** 2 @ variances[used]
        return ForkGain(float(gain), math.sqrt(variance))


def _sums(present: RowLosses, own: RowLosses) -> list[float]:
    """Returns sums over the rows of a target, `[7]`; see `paired`."""
    (loss, n), d = present, own[0] - present[0]
    return [loss.sum(), n.sum(), d.sum(), d @ d, d @ n, n @ n, float(len(n))]


def paired(sums: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Returns losses, gains and the gains' variances by target.

    The mean gain per item is a ratio of sums over rows, with the variance of one (Cochran 1977, equation 6.12).

    Args:
        sums: `[num_targets, 7]`: sums over rows of `l, n, d, d², dn, n², 1`, for a row's summed loss `l`, its items `n`
            and its gain `d`.

    Returns:
        `[num_targets]` each; NaN where there are fewer than two rows.
    """
    loss, n, d, dd, dn, nn_, count = sums.T
    with np.errstate(invalid="ignore", divide="ignore"):
        gain = d / n
        residual = np.maximum(dd - 2.0 * gain * dn + gain**2 * nn_, 0.0)
        return loss / n, gain, residual / n**2 * count / np.where(count > 1, count - 1, np.nan)


def _set_rates(optimizer: torch.optim.Optimizer, rates: Sequence[float]) -> None:
    for group, rate in zip(optimizer.param_groups, rates, strict=True):
        if isinstance(group["lr"], Tensor):
            group["lr"].fill_(rate)
        else:
            group["lr"] = rate


def _joined(parts: Iterable[FloatArray]) -> FloatArray:
    return np.concatenate([np.zeros(0), *parts])


def _numbers(values: Tensor) -> FloatArray:
    numbers: FloatArray = values.double().cpu().numpy()
    return numbers


def new_hook(passes: AuxiliaryPasses) -> ForkProbe | None:
    """Makes the hook, if forks are asked for.

    Raises:
        ValueError: If the run cannot be forked.
    """
    if not (requests := asked(passes.plan.needs, Forks)):
        return None
    splits = passes.plan.aim
    _check(passes, splits.objective)
    targets = [TargetRows(name, splits.rows[name], passes) for name in splits.objective.names]
    return ForkProbe(targets, passes, Forks.merged(requests), splits.objective)


def _check(passes: AuxiliaryPasses, objective: Objective) -> None:
    """Refuses what forks within a run cannot do."""
    plan, name = passes.plan, passes.plan.policy.name
    unread = [stream.name for stream in plan.streams if stream.is_iterable or stream.is_memory]
    reasons = {
        f"the streams {unread} cannot be read ahead: make them map-style": bool(unread),
        "the weights or the optimizer are sharded: use DDP or one process": passes.is_sharded
        or passes.trainer.is_deepspeed_enabled,
        f"the methods {[method.name for method in plan.methods]} change the gradient": bool(plan.methods),
        f"the objective has bounds, {dict(objective.bounds)}, which forks do not compare": bool(objective.bounds),
        "each step has one stream, which forks do not support": passes.run.mixing.planner.has_whole_steps
        or plan.mixture.one_stream_per is not None,
    }
    for reason, holds in reasons.items():
        if holds:
            raise wrong_value("mixing", f"={name} needs forks of the run, but {reason}; or take its policy alone.")
