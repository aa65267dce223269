"""Learning without forgetting: on new samples the model keeps to what it said of them before."""

import torch
from torch import Tensor, nn

from mixer.run.hooks import ForwardResult
from mixer.utils.ranges import check_range, check_temperature
from replay.methods.logits import softened_divergence
from tasks.methods.shared import FrozenModel, TaskContext, TaskMethod, class_logits, outermost_mode


class LwF(TaskMethod):
    """Holds the predictions for earlier classes to those of the model before the task, on the task's own samples.

    Li and Hoiem 2017, "Learning without Forgetting", arXiv:1606.09282, equations 2 and 3: the loss gets `λ` times the
    mean over samples of `KL(p_before || p)`, where `p` is the softmax of the logits over `T`; its gradient is that of
    the paper's cross-entropy, and it is 0 for an unchanged model. The softmax goes over the classes of all earlier
    tasks; in a task-incremental sequence over those of each earlier task by itself, with one more forward; and over all
    outputs where samples have no classes. Costs a copy of the model and a forward a step; no memory is needed, and
    samples of one count as well.

    Args:
        strength: `λ`, 0 or more; 1 in the paper; `T²` makes up for the softened gradient.
        temperature: `T`, above 0; 2 in the paper.

    Raises:
        ValueError: If a value is outside its range; at the start of training outside of a continual run; during
            training, if the model gives no logits `[num_rows, num_classes]`.
    """

    needs = frozenset({"whole weights"})

    def __init__(self, strength: float = 1.0, temperature: float = 2.0):
        check_range("strength", strength, 0.0, float("inf"), "1 is usual, and 0 keeps to nothing")
        check_temperature("temperature", temperature, "2 is usual")
        self.strength, self.temperature = float(strength), float(temperature)

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Copies the model; see `TaskMethod.begin_task`."""
        super().begin_task(task, model)
        self._by_task = task.scenario == "task"
        self._before = FrozenModel(model, self.run.passes) if task.number else None
        together = sorted({label for classes in task.earlier for label in classes})
        groups = [list(classes) for classes in task.earlier] if self._by_task else [together]
        self._groups = [group or slice(None) for group in groups]

    def term(self, trained: ForwardResult) -> Tensor | None:
        """Returns λ times the mean divergence, this rank's part; see `Method.term`."""
        if self._before is None:
            return None
        earlier, logits = self._before.logits(trained, self.name), self._logits(trained)
        divergence = sum(softened_divergence(earlier[:, g], logits[:, g], self.temperature) for g in self._groups)
        return self.run.mean_over_step(self.strength * torch.as_tensor(divergence), trained)

    def _logits(self, trained: ForwardResult) -> Tensor:
        """Returns the logits of a micro-batch; a masked head hides those of other tasks while the model is trained."""
        output = trained.output
        if self._by_task:
            model = self.run.passes.model
            with outermost_mode(model, training=False):
                output = model(**self.run.passes.prepare_inputs(trained.micro.inputs))
        return class_logits(output, len(trained.micro.stream_ids), self.name)
