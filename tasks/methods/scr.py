"""Supervised contrastive replay: features of a class are pulled together, and all others pushed away."""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mixer.mixture.step_plan import Plan
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import RunContext
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.ranges import check_temperature
from tasks.methods.shared import TaskMethod, class_logits

Augment = Callable[[dict[str, Any]], dict[str, Any]]


class SCR(TaskMethod):
    """Trains on the supervised contrastive loss of new and replayed samples, in place of the model's own loss.

    Mai et al. 2021, "Supervised Contrastive Replay", arXiv:2103.13885, equation 1 (Khosla et al. 2020,
    arXiv:2004.11362): for sample `i`, with `P` the others of its class and `A` all others,
    `−1/|P| Σ_p log(exp(z_i·z_p/τ) / Σ_a exp(z_i·z_a/τ))`, and the mean over the samples that have such others. `z` are
    the model's outputs scaled to length 1: the output layer is the projection, and its input the features by which
    `score=nearest_mean(memory)` classifies. All samples of a step are contrasted, so a step must be one micro-batch.

    Args:
        temperature: `τ`, above 0; 0.07 in the paper.
        augment: Makes the inputs of a second view from a copy of a step's inputs, as random crops do; `None` contrasts
            the samples alone. Random numbers should come from torch's generator, which a checkpoint keeps.

    Raises:
        ValueError: If the temperature is outside its range; when the trainer is made, on several ranks; at the start of
            training outside of a continual run or if samples have no classes; during training, if a step has several
            micro-batches, or the model gives no logits `[num_rows, num_classes]`.
    """

    adds_term = True
    needs_classes = True

    def __init__(self, temperature: float = 0.07, augment: Augment | None = None):
        check_temperature("temperature", temperature, "0.07 is usual")
        if augment is not None and not callable(augment):
            raise TypeError(f"augment must be a function from inputs to inputs, got a {type(augment).__name__}.")
        self.temperature, self.augment = float(temperature), augment

    def attach(self, run: RunContext) -> None:
        """Refuses several ranks, and waits for a task; see `Method.attach`."""
        super().attach(run)
        if run.world_size > 1:
            raise ValueError(
                f"{self.name} contrasts all samples of a step with each other, which {run.world_size} ranks cannot. "
                "Use one process, or ERACE or DERPlusPlus, which need no sample of another rank."
            )

    def factors(self, plan: Plan, items: Int64Array) -> FloatArray:
        """Leaves out the model's own loss; see `Method.factors`."""
        return np.zeros(len(items))

    def term(self, trained: ForwardResult) -> Tensor:
        """Gives the loss; see `Method.term`."""
        num_rows, runs = len(trained.micro.stream_ids), self._run.runs
        if num_rows != trained.plan.total:
            raise ValueError(
                f"{self.name} contrasts all {trained.plan.total} samples of a step, but a micro-batch has {num_rows}. "
                f"Set per_device_train_batch_size to {trained.plan.total} or more."
            )
        inputs = runs.prepared(trained.micro.inputs)
        views = [class_logits(trained.output, num_rows, self.name)]
        if self.augment is not None:
            views.append(class_logits(runs.model(**self.augment(dict(inputs))), num_rows, self.name))
        return contrastive_loss(torch.cat(views), inputs["labels"].repeat(len(views)), self.temperature)


def contrastive_loss(outputs: Tensor, labels: Tensor, temperature: float) -> Tensor:
    """Computes the supervised contrastive loss (arXiv:2004.11362, equation 2).

    Args:
        outputs: `[num_rows, num_outputs]`.
        labels: int64 `[num_rows]`.
        temperature: `τ`.

    Returns:
        A scalar: the mean over the rows that are not the only one of their class; 0 if there are none.
    """
    directions = nn.functional.normalize(outputs, dim=-1)
    is_self = torch.eye(len(labels), dtype=torch.bool, device=labels.device)
    similarities = (directions @ directions.T / temperature).masked_fill(is_self, float("-inf"))
    logs = similarities.log_softmax(dim=-1)
    are_alike = (labels[:, None] == labels) & ~is_self
    counts = are_alike.sum(dim=-1)
    sums = logs.masked_fill(~are_alike, 0.0).sum(dim=-1)
    return -(sums / counts.clamp(min=1)).sum() / counts.gt(0).sum().clamp(min=1)
