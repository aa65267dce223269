"""Elastic weight consolidation: weights that earlier tasks need are held near their values."""

import numpy as np
import torch
from torch import nn

from mixer.loading.loaded_step import MicroBatch
from mixer.trainer.method import RunContext
from mixer.utils.random_state import drawn_places
from mixer.utils.ranges import check_count, check_range
from tasks.methods.shared import TaskContext, Tensors, WeightMethod, outermost_mode, trainable, wide


class OnlineEWC(WeightMethod):
    """Holds each weight near its value at the end of the last task, the more the earlier tasks' losses depend on it.

    Kirkpatrick et al. 2017, arXiv:1612.00796, equation 3, in the online form of Schwarz et al. 2018, "Progress &
    Compress", arXiv:1805.06370, equations 8 and 9: the loss gets `λ/2 Σ F (θ − θ*)²`, with `θ*` the weights after the
    last task and `F ← γ F + F_task`. `F_task` is the diagonal of the empirical Fisher information: the mean over the
    task's samples of their squared gradients, each taken by itself with the sample's own label. Two more numbers a
    weight, however many tasks. No memory of samples is needed.

    Args:
        strength: `λ`, 0 or more; the surer the model is of its predictions, the smaller is `F` and the larger must this
            be: from 10 on noisy data to a million on MNIST.
        decay: `γ`, from 0 to 1: how much earlier tasks still count.
        samples: Samples of a task for its Fisher information, drawn by the run's seed; one backward each.

    Raises:
        ValueError: If a value is outside its range; at the start of training outside of a continual run.
    """

    def __init__(self, strength: float = 100.0, decay: float = 1.0, samples: int = 1_000):
        check_range("strength", strength, 0.0, float("inf"), "10 to 1e6 are usual, and 0 holds nothing")
        check_range("decay", decay, 0.0, 1.0, "1 forgets no earlier task")
        check_count("samples", samples, 1, "a thousand are usual")
        self.strength, self.decay, self.samples = float(strength), float(decay), samples
        super().__init__()

    def end_backward(self, model: nn.Module) -> None:
        """Adds the gradient of the penalty; see `Method.end_backward`."""
        self._anchor.add_gradient(self.run, self.strength)

    def end_task(self, task: TaskContext, model: nn.Module) -> None:
        """Takes the Fisher information over all ranks; see `TaskMethod.end_task`."""
        run = self.run
        count = min(self.samples, len(task.dataset))
        positions = drawn_places(len(task.dataset), count, run.seed, task.number)[run.rank :: run.world_size]
        own = run.passes.on_all_ranks(lambda: _squared_gradients(run, task, positions.tolist()))
        self._anchor.hold(model, {name: run.rank_sync.add_up(sums) / count for name, sums in own.items()}, self.decay)


def _squared_gradients(run: RunContext, task: TaskContext, positions: list[int]) -> Tensors:
    """Sums the squared gradients of samples, each by itself; layers such as dropout are in evaluation mode."""
    passes = run.passes
    with passes.on_one_rank() as model, outermost_mode(model, training=True):
        parameters = trainable(model)
        sums: Tensors = {name: torch.zeros_like(weight, dtype=wide(weight)) for name, weight in parameters.items()}
        for position in positions:
            micro = MicroBatch(passes.collator([task.dataset[position]]), np.zeros(0, dtype=np.int64), False)
            loss = passes.mean_loss(micro, model)
            gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True)
            for name, gradient in zip(sums, gradients, strict=True):
                if gradient is not None:
                    sums[name] += gradient.to(sums[name].dtype).square()
    return sums
