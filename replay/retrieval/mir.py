"""Entries with which the coming step would interfere most."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixer.distributed.gradient_sync import obstacle
from mixer.loading.loaded_step import StepBatch
from mixer.mixture.permutation import Permutation
from mixer.trainer.method import RunContext
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_count, check_range
from replay.retrieval.uniform import Uniform
from replay.shared.offered import Facts
from replay.shared.random_numbers import RandomNumbers

_CANDIDATES = 11  # purpose of their random numbers


class MIR(Uniform):
    """Draws the entries whose loss would rise most by training on new samples alone: maximally interfered retrieval.

    Aljundi et al. 2019, "Online Continual Learning with Maximally Interfered Retrieval", arXiv:1908.04742, section 3.1:
    of some candidates, drawn evenly, those with the largest `ℓ(x; θ - λ ∇L(new samples)) - ℓ(x; θ)` are replayed.
    Losses are taken as in evaluation, the gradient as in training. Where a draw takes as many as there are candidates,
    or a step has nothing new, it is even, as it also is outside of a `MixingTrainer`.

    A step costs one more forward and backward of its new samples and two forwards of the candidates, and is loaded
    anew; the weights and one gradient are held a second time. Micro-batches are of one stream each.

    Args:
        candidates: Number of candidates; the paper has 50, for draws of 10.
        learning_rate: `λ`; `None` takes that of the coming optimizer step.

    Raises:
        ValueError: If a value is outside its range; when the run begins if the model is sharded.
    """

    def __init__(self, candidates: int = 50, learning_rate: float | None = None):
        check_count("candidates", candidates, 1, "50 for draws of 10 are usual")
        if learning_rate is not None:
            check_range("learning_rate", learning_rate, 0.0, float("inf"), "None takes that of the optimizer")
        self.candidates, self.learning_rate = candidates, learning_rate

    def start(self, capacity: int, key: int) -> None:
        """Begins with an empty buffer; see `Retrieval.start`."""
        super().start(capacity, key)
        self._keys = RandomNumbers(key, _CANDIDATES)

    def check(self, model: nn.Module, world_size: int) -> None:
        """Refuses a model whose weights no rank has whole.

        Args:
            model: The model as it is trained.
            world_size: Number of ranks.

        Raises:
            ValueError: If it is such a model.
        """
        reason = obstacle(model, world_size)
        if reason is not None:
            text = f"MIR takes a gradient of new samples by itself, which cannot be done here: {reason}. Use plain DDP."
            raise InvalidValueError(f"retrieval={text}", option="retrieval")

    def candidate_slots(self, start: int, size: int) -> Int64Array:
        """Draws the candidates of a draw.

        Args:
            start: Position of the draw.
            size: Number of entries.

        Returns:
            int64 `[num_candidates]`: different slots.
        """
        return Permutation(size, self._keys.key(start)).indices(0, min(self.candidates, size))

    def redraw(self, run: RunContext, batch: StepBatch, memory_id: int, size: int) -> bool:
        """Replaces the entries drawn for a step by those whose loss rises most.

        Args:
            run: The run; all ranks have to make the same call.
            batch: The step, in micro-batches of one stream each.
            memory_id: The buffer's stream.
            size: Number of entries.

        Returns:
            Whether other entries were drawn.
        """
        count, start = int(batch.plan.counts[memory_id]), int(batch.plan.starts[memory_id])
        are_new = np.array([not stream.is_memory for stream in run.streams])
        num_items = int(run.passes.items_by_stream[are_new].sum())
        if not 0 < count < min(self.candidates, size) or not num_items:
            return False
        slots = self.candidate_slots(start, size)
        cursor: Any = run.planner().cursors[memory_id]
        # Candidates are at positions before all: who loads ahead has predicted those that come.
        counts, starts = np.zeros_like(batch.plan.counts), batch.plan.starts.copy()
        counts[memory_id], starts[memory_id] = len(slots), -len(slots)
        plan = replace(batch.plan, counts=counts, starts=starts)
        cursor.assign(-len(slots), slots)
        new = tuple(micro for micro in batch.micro_batches if are_new[micro.stream_ids[0]])
        gradient = run.passes.gradient(replace(batch, micro_batches=new), num_items)
        candidates = run.rank_sync.run_on_all(partial(run.passes.load, plan))
        losses = partial(self._losses, run, candidates, -len(slots), gradient)
        known = run.rank_sync.run_on_all(losses).gathered(run.rank_sync)
        rises = known["after"] - known["before"]
        worst = np.argsort(np.where(np.isnan(rises), np.inf, -rises), kind="stable")[:count]
        cursor.assign(start, slots[worst])
        return True

    def _losses(self, run: RunContext, candidates: StepBatch, start: int, gradient: Sequence[Tensor | None]) -> Facts:
        facts = Facts(("before", "after"), candidates.plan.total)
        rate = run.passes.learning_rate if self.learning_rate is None else self.learning_rate
        for name in ("before", "after"):
            with _moved(run.passes.parameters, gradient, rate if name == "after" else 0.0):
                for micro, losses in run.passes.row_losses(candidates):
                    assert micro.positions is not None, "methods see positions"  # noqa: S101
                    facts.note(name, micro.positions - start, losses)
        return facts


@contextlib.contextmanager
def _moved(parameters: Sequence[nn.Parameter], gradient: Sequence[Tensor | None], rate: float) -> Iterator[None]:
    """Takes a step down the gradient, and back to the bit."""
    pairs = [(p, g) for p, g in zip(parameters, gradient, strict=True) if g is not None and rate]
    kept = [parameter.detach().clone() for parameter, _ in pairs]
    with torch.no_grad():
        for parameter, own in pairs:
            parameter.add_(own, alpha=-rate)
    try:
        yield
    finally:
        with torch.no_grad():
            for (parameter, _), value in zip(pairs, kept, strict=True):
                parameter.copy_(value)
