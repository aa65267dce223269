"""Steps by an aggregate of the streams' gradients, in place of their sum, where the streams are at odds."""

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from accelerate.state import GradientState
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from mixer.distributed.gradient_sync import averaged_parameters, obstacle
from mixer.gradients.conflict import Aggregator, known_name
from mixer.gradients.per_source import StreamGradients
from mixer.ledger.recorder import ConflictLog
from mixer.loading.step import StepBatch
from mixer.trainer.method import ForwardResult, Method, RunContext
from mixer.utils.arrays import FloatArray

_KEY = 0x636F6E66  # keeps its random numbers apart from others that are drawn for a seed and a step


class GradientAggregation(Method):
    """Weighs the streams' parts of a step's gradient by how they agree, with an aggregator of `torchjd`.

    A step's loss is a sum of one part for each stream: `L = Σ_k L_k`, with L_k the sum of the losses of the stream's
    items, times its loss weight, over the number of items of all streams. With `g_k = ∇L_k`, the gradient becomes
    `Σ_k w_k g_k`, where w goes by the Gramian `<g_i, g_j>`, and `w = 1` is the ordinary gradient. So a stream's share
    of the items counts, as it does without. Weights are scaled such that their mean is 1 where gradients are orthogonal
    and equally long, whichever the aggregator (see `gradients.conflict.Aggregator`). Names are those of

    - `"pcgrad"`: Yu et al. 2020, arXiv:2001.06782, algorithm 1: what goes against another stream is projected away, the
      others taken in random order. Without a conflict the ordinary gradient.
    - `"cagrad"`: Liu et al. 2021, arXiv:2110.14048, algorithm 1: the worst improvement is made largest in a ball around
      the mean, of c times its length (`options={"c": 0.4}`).
    - `"mgda"`: Sener and Koltun 2018, arXiv:1810.04650, algorithm 2: the shortest convex combination. It leans towards
      streams with short gradients, conflict or not.
    - `"nash-mtl"`: Navon et al. 2022, arXiv:2202.01017: all streams gain alike, however long their gradients; the
      aggregate's squared length is the sum of theirs.
    - `"upgrad"`: Quinton and Rey 2024, arXiv:2406.16232: each is projected onto the cone that makes no loss rise, and
      they are averaged. Without a conflict the ordinary gradient.

    `"pcgrad"` and `"mgda"` need torchjd alone (the extra `conflict`), the others solvers, some of which are under
    copyleft licences (the extra `conflict-solvers`).

    Micro-batches are of one stream each. It needs the memory of K - 1 more gradients for K streams, averages those over
    the ranks too, multiplies K (K + 1) / 2 pairs of gradients, and waits for the device once a step. Rank 0's
    weights are everybody's. What follows (clipping, the norm in the log) sees the aggregate. Streams that a step has
    none of, or whose gradient is 0, are left out; if fewer than two are left, or a gradient is not finite (what is done
    then `nonfinite` and the gradient scaler say), the gradient is the ordinary one. So it is with one stream in all,
    and where an aggregator's entries for the streams that are left add up to no more than 0.

    Log entries have `conflicts`, the share of steps in which a pair of gradients had a product below 0, and
    `conflict_weight/STREAM`, the mean of w_k. A run that goes on from a checkpoint has to have the same aggregator and
    options, or `allow_inexact`.

    Args:
        aggregator: `"pcgrad"`, `"cagrad"`, `"mgda"`, `"nash-mtl"` or `"upgrad"`; or an aggregator or weighting of
            torchjd that goes by the Gramian and has no state. Where it has an entry for each stream (`pref_vector`),
            they are in the streams' order.
        options: Arguments of torchjd's class, for a name.

    Raises:
        ValueError: If there is none of that name; when the trainer is made, if torchjd or a solver is not installed or
            the run is none in which streams' gradients are had; when it begins to train, if no rank has a whole
            gradient.
        TypeError: When the trainer is made, if the aggregator is something else.

    Example:
        >>> GradientAggregation("cagrad", {"c": 0.4})
        GradientAggregation('cagrad', {'c': 0.4})
    """

    one_stream_each = True

    def __init__(self, aggregator: Any = "pcgrad", options: dict[str, Any] | None = None):
        self.aggregator = known_name(aggregator) if isinstance(aggregator, str) else aggregator
        self.options = dict(options or {})
        self._log = ConflictLog()

    def __repr__(self) -> str:
        return f"GradientAggregation({self.aggregator!r}{f', {self.options}' if self.options else ''})"

    def attach(self, run: RunContext) -> None:
        """Makes the aggregator; see `Method.attach`."""
        self._run = run
        self._gradients: StreamGradients | None = None
        self._log = ConflictLog()
        self._aggregator = Aggregator(self.aggregator, self.options, len(run.streams))
        self.one_stream_each = self.takes_gradients = len(run.streams) > 1
        if run.world_size > 1 and self.one_stream_each and run.runs.is_cut_by_tokens:
            raise ValueError(
                f"conflict={self._aggregator.name}: with max_tokens_per_micro_batch ranks may end a step with "
                "different streams, whose gradients would be averaged. Use per_device_train_batch_size instead."
            )

    def prepare(self, model: nn.Module) -> None:
        """Refuses models of which no rank has a gradient of its own; see `Method.prepare`."""
        if not self.one_stream_each:
            return
        reason = obstacle(model, self._run.world_size) or _own_obstacle(model, self._run.world_size)
        if reason is not None:
            raise ValueError(
                f"conflict={self._aggregator.name} needs the gradient of each stream by itself, and cannot have it: "
                f"{reason}. Use plain DDP, and dense gradients."
            )
        if self._run.world_size > 1 and GradientState().plugin_kwargs.get("sync_each_batch", False):
            raise ValueError(
                f"conflict={self._aggregator.name} averages the gradient of each stream once, and sync_each_batch=True "
                "does so after each micro-batch. Leave it out of accelerator_config's gradient_accumulation_kwargs."
            )

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Counts the micro-batches of each stream; see `Method.begin_step`."""
        ids = [int(micro.stream_ids[0]) for micro in batch.micro_batches]
        changes = 1 + sum(one != other for one, other in itertools.pairwise(ids))
        if self.one_stream_each and changes != len(set(ids)):
            raise ValueError(f"{self.name}: micro-batches must come stream after stream, got those of streams {ids}.")
        self._index, self._last = batch.plan.index, ids[-1]
        self._left = {stream_id: ids.count(stream_id) for stream_id in ids}
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        self._gradients = StreamGradients(trained, self._run.world_size) if self.one_stream_each else None

    def end_micro_batch(self, model: nn.Module, trained: ForwardResult, is_last_first: bool) -> None:
        """Takes a stream's gradient aside once it is complete; see `Method.end_micro_batch`."""
        if self._gradients is None:
            return
        stream_id = int(trained.micro.stream_ids[0])
        self._left[stream_id] -= 1
        if not self._left[stream_id] and stream_id != self._last:
            self._gradients.stash(stream_id)

    def end_backward(self, model: nn.Module) -> None:
        """Puts the aggregate in the place of the gradient; see `Method.end_backward`."""
        gradients, self._gradients = self._gradients, None
        if gradients is None or all(parameter.grad is None for parameter in model.parameters()):  # the step is skipped
            return
        gradients.complete(self._last, self._run.rank_sync)
        gramian, stream_ids = gradients.gramian(), gradients.stream_ids
        weights = np.ones(len(stream_ids))
        present = np.flatnonzero(np.diagonal(gramian) > 0.0)
        if np.isfinite(gramian).all():
            if len(present) > 1:
                weights[present] = self._weigh(
                    gramian[np.ix_(present, present)], [stream_ids[place] for place in present]
                )
            self._log.note(gramian, [stream_ids[place] for place in present], weights[present])
        gradients.combine(weights)

    def _weigh(self, gramian: FloatArray, stream_ids: Sequence[int]) -> FloatArray:
        """Finds the weights, the same on all ranks though their devices may multiply differently."""
        rank_sync, key = self._run.rank_sync, (_KEY, self._run.seed, self._index)
        weights = rank_sync.run_on_all(lambda: self._aggregator.weigh(gramian, stream_ids, key))
        return np.frombuffer(rank_sync.from_first(weights.tobytes()), dtype=np.float64)

    # ---- Logs and checkpoints ----

    def log_entries(self) -> dict[str, float]:
        """Gives the share of steps with a conflict, and the streams' mean weights; see `Method.log_entries`."""
        entries = self._log.entries([stream.name for stream in self._run.streams])
        self._log = ConflictLog()
        return entries

    def log_state(self) -> dict[str, Any]:
        """Gives the sums since the last log entry; see `Method.log_state`."""
        return self._log.state_dict()

    def load_log_state(self, state: Mapping[str, Any]) -> None:
        """Takes them up; see `Method.load_log_state`."""
        self._log = ConflictLog.from_state(state)

    def settings(self) -> str | None:
        """Says which aggregator it is and how it is set, where streams are several; see `Method.settings`."""
        return f"conflict={self._aggregator.description}" if self.one_stream_each else None


def _own_obstacle(model: nn.Module, world_size: int) -> str | None:
    """Says what stands in the way of taking gradients aside, beside what does of averaging them."""
    for name, module in model.named_modules():
        if getattr(module, "sparse", False) is True:
            return f"{name} has sparse gradients"
    inner = getattr(model, "_orig_mod", model)  # compiled
    if world_size > 1 and isinstance(inner, DistributedDataParallel):
        averaged, trained = averaged_parameters(model)[0], [p for p in model.parameters() if p.requires_grad]
        if len(averaged) < len(trained):
            return f"DDP does not average {len(trained) - len(averaged)} of its parameters"
    return None
