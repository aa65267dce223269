"""Steps along an aggregate of the streams' gradients instead of their sum: the option `conflict`."""

import itertools
from typing import Any

import numpy as np
from accelerate.state import GradientState
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from transformers import Trainer

from mixer.distributed.gradient_sync import averaged_parameters, obstacle
from mixer.gradients.conflict import Aggregator, known_name
from mixer.gradients.per_source import StreamGradients
from mixer.loading.build import has_whole_steps
from mixer.loading.loaded_step import StepBatch
from mixer.measurements import required
from mixer.run.class_checks import optimizer_name, steps_in_backward
from mixer.run.hooks import ForwardResult
from mixer.run.plan import RunPlan
from mixer.trainer.method import Method, RunContext, as_methods
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import wrong_value

_KEY = 0x636F6E66  # separates its random numbers from others with the same seed and step


class GradientAggregation(Method):
    """Weights the streams' parts of a step's gradient by their agreement, with an aggregator of `torchjd`.

    The loss of a step is a sum of one part per stream: `L = Σ_k L_k`, where L_k is the sum of the losses of the
    stream's items, times its loss weight, over the number of items of all streams. With `g_k = ∇L_k`, the gradient
    becomes `Σ_k w_k g_k`, where w depends on the Gramian `<g_i, g_j>`, and `w = 1` is the ordinary gradient. A stream's
    share of the items therefore counts as it does without aggregation. Weights are scaled so that their mean is 1 for
    orthogonal gradients of equal length, for every aggregator (see `gradients.conflict.Aggregator`). The
    names:

    - `"pcgrad"`: Yu et al. 2020, arXiv:2001.06782, algorithm 1: projects away what opposes another stream, taking the
      others in random order. Without a conflict it is the ordinary gradient.
    - `"cagrad"`: Liu et al. 2021, arXiv:2110.14048, algorithm 1: maximises the worst improvement in a ball around the
      mean with radius 0.4 times its length.
    - `"mgda"`: Sener and Koltun 2018, arXiv:1810.04650, algorithm 2: the shortest convex combination. It favours
      streams with short gradients, with or without conflict.

    Other aggregators of torchjd are passed as objects. `"pcgrad"` and `"mgda"` need torchjd only (the extra
    `conflict`); `"cagrad"` and others need solvers, some under copyleft licences (the extra `conflict-solvers`).

    Micro-batches contain one stream each. For K streams, a step needs memory for K - 1 more gradients, averages those
    over the ranks too, computes K (K + 1) / 2 inner products, and waits for the device once. All ranks use the weights
    of rank 0. Everything after it (clipping, the logged norm) sees the aggregate. Streams that a step has no samples
    of, or whose gradient is 0, are left out. The gradient is the ordinary one if fewer than two streams are left, if a
    gradient is not finite (`nonfinite` and the gradient scaler decide about that step), or if there is only one stream
    in all. A resumed run needs the same aggregator, or `allow_inexact`.

    Args:
        aggregator: `"pcgrad"`, `"cagrad"` or `"mgda"`; or a stateless aggregator of torchjd that uses the Gramian, such
            as `torchjd.aggregation.UPGrad()`.

    Raises:
        ValueError: If the name is unknown; when the trainer is made, if torchjd or a solver is not installed or the run
            cannot compute per-stream gradients; when training begins, if no rank has a whole gradient.
        TypeError: When the trainer is made, if the aggregator is of another type.

    Example:
        >>> GradientAggregation("CAGrad")
        GradientAggregation('cagrad')
    """

    needs = frozenset({"one stream each"})

    def __init__(self, aggregator: nn.Module | str = "pcgrad"):
        self.aggregator = known_name(aggregator) if isinstance(aggregator, str) else aggregator

    def __repr__(self) -> str:
        return f"GradientAggregation({self.aggregator!r})"

    def attach(self, run: RunContext) -> None:
        """Makes the aggregator; see `Method.attach`."""
        self._run = run
        self._gradients: StreamGradients | None = None
        self._aggregator = Aggregator(self.aggregator, len(run.streams))
        self._is_active = len(run.streams) > 1
        self.needs = type(self).needs | {"whole gradients"} if self._is_active else type(self).needs
        if run.world_size > 1 and self._is_active and run.passes.is_cut_by_tokens:
            raise wrong_value(
                "conflict",
                f"={self._aggregator.name}: with max_tokens_per_micro_batch ranks may end a step with different "
                "streams, whose gradients would be averaged. Use per_device_train_batch_size instead.",
            )

    def prepare(self, model: nn.Module) -> None:
        """Refuses models for which no rank has a whole gradient; see `Method.prepare`."""
        if not self._is_active:
            return
        reason = obstacle(model, self._run.world_size) or _own_obstacle(model, self._run.world_size)
        if reason is not None:
            raise wrong_value(
                "conflict",
                f"={self._aggregator.name} needs a separate gradient per stream, which is not possible here: {reason}. "
                "Use plain DDP, and dense gradients.",
            )
        if self._run.world_size > 1 and GradientState().plugin_kwargs.get("sync_each_batch", False):
            raise wrong_value(
                "conflict",
                f"={self._aggregator.name} averages the gradient of each stream once, but sync_each_batch=True does so "
                "after each micro-batch. Remove it from accelerator_config's gradient_accumulation_kwargs.",
            )

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Counts the micro-batches of each stream; see `Method.begin_step`."""
        ids = [int(micro.stream_ids[0]) for micro in batch.micro_batches]
        changes = 1 + sum(before != after for before, after in itertools.pairwise(ids))
        if self._is_active and changes != len(set(ids)):
            raise ValueError(f"{self.name}: micro-batches must be sorted by stream, got {ids}.")
        self._index, self._last = batch.plan.index, ids[-1]
        self._left = {stream_id: ids.count(stream_id) for stream_id in ids}
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._gradients = StreamGradients(trained, self._run.world_size) if self._is_active else None

    def end_micro_batch(self, model: nn.Module, trained: ForwardResult, ends_priority: bool) -> None:
        """Stashes a stream's gradient once it is complete; see `Method.end_micro_batch`."""
        if self._gradients is None:
            return
        stream_id = int(trained.micro.stream_ids[0])
        self._left[stream_id] -= 1
        if not self._left[stream_id] and stream_id != self._last:
            self._gradients.stash(stream_id)

    def end_backward(self, model: nn.Module) -> None:
        """Replaces the gradient by the aggregate; see `Method.end_backward`."""
        gradients, self._gradients = self._gradients, None
        if gradients is None or all(parameter.grad is None for parameter in model.parameters()):  # the step is skipped
            return
        gradients.complete(self._last, self._run.rank_sync)
        gramian, weights = gradients.gramian(), np.ones(len(gradients.stream_ids))
        present = np.flatnonzero(np.diagonal(gramian) > 0.0)
        if len(present) > 1 and np.isfinite(gramian).all():
            weights[present] = self._weigh(gramian[np.ix_(present, present)])
        gradients.combine(weights)

    def _weigh(self, gramian: FloatArray) -> FloatArray:
        """Computes the weights; the same on all ranks, although their devices may round differently."""
        rank_sync, key = self._run.rank_sync, (_KEY, self._run.seed, self._index)
        weights = rank_sync.run_on_all(lambda: self._aggregator.weigh(gramian, key))
        return np.frombuffer(rank_sync.broadcast(weights.tobytes()), dtype=np.float64)

    def settings(self) -> str | None:
        """Describes the aggregator if there are several streams; see `Method.settings`."""
        return f"conflict={self._aggregator.description}" if self._is_active else None


def _own_obstacle(model: nn.Module, world_size: int) -> str | None:
    """Finds a reason why gradients cannot be stashed, besides the reasons why they cannot be averaged."""
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            return f"{name} has sparse gradients"
    inner = getattr(model, "_orig_mod", model)  # compiled
    if world_size > 1 and isinstance(inner, DistributedDataParallel):
        averaged, trained = averaged_parameters(model)[0], [p for p in model.parameters() if p.requires_grad]
        if len(averaged) < len(trained):
            return f"DDP does not average {len(trained) - len(averaged)} of its parameters"
    return None


def with_conflict(methods: object, conflict: Any) -> tuple[Method, ...]:
    """Adds the method that the option `conflict` stands for.

    Args:
        methods: The option `methods`.
        conflict: A name, an aggregator or weighting of torchjd, a `GradientAggregation`, or `None`.

    Returns:
        The methods. The aggregation comes first, so that the others see the final gradient.

    Raises:
        ValueError: If the name is unknown, or `methods` contains an aggregation already.
        TypeError: If `methods` is no list of methods.
    """
    checked = as_methods(methods)
    if conflict is None:
        return checked
    if any(isinstance(method, GradientAggregation) for method in checked):
        raise wrong_value("conflict", "and methods both combine the streams' gradients: use only one of the two.")
    return (conflict if isinstance(conflict, GradientAggregation) else GradientAggregation(conflict), *checked)


def check_conflict(trainer: Trainer, plan: RunPlan) -> None:
    """Refuses options under which there is no gradient per stream.

    Args:
        trainer: The trainer, after the construction of its parent class.
        plan: The plan of the run.

    Raises:
        ValueError: With the reason and the alternatives.
    """
    schedule, methods = plan.schedule, plan.methods
    if len(plan.streams) == 1 or not any(isinstance(method, GradientAggregation) for method in methods):
        return
    if has_whole_steps(plan.streams, plan.mixture.one_stream_per):
        raise wrong_value(
            "conflict", "combines gradients of several streams, and with one_stream_per='step' a step has one."
        )
    if steps_in_backward(trainer.args):
        text = f"={optimizer_name(trainer.args)!r} updates weights during the backward pass, before all gradients are "
        raise wrong_value("optim", f"{text}complete. Use another optimizer, or leave conflict out.")
    if trainer.args.world_size > 1 and "whole gradients" in required(schedule.needs):
        text = f"={schedule.name} compares the gradients of the ranks, which with conflict are gradients of one "
        raise wrong_value("batch_size", f"{text}stream. Use a schedule that measures no noise, or leave conflict out.")
    if splitting := [method.name for method in methods if type(method).has_priority is not Method.has_priority]:
        raise wrong_value(
            "conflict", f"and the methods {splitting} both combine separate gradients: use one of the two."
        )
