"""Experience replay with asymmetric cross-entropy: new samples do not push earlier classes down."""

import torch
from torch import Tensor, nn

from mixer.run.hooks import ForwardResult
from mixer.trainer.method import RunContext
from mixer.utils.errors import InvalidValueError
from replay import ReplayBuffer
from tasks.methods.shared import TaskContext, TaskMethod, class_logits


class ERACE(TaskMethod):
    """Lets only the task's own classes compete for new samples, while all do for samples of a memory.

    Caccia et al. 2022, "New Insights on Reducing Abrupt Representation Change in Online Continual Learning",
    arXiv:2104.05025, section 4.1: `L = CE(new, C_curr) + CE(memory, C_old ∪ C_curr)`. `C_curr` are the classes of the
    task (of the batch in the paper), so that a step may be split over ranks and micro-batches. The loss stays the mean
    over all samples of the step; the term in the log is the difference to plain replay, 0 or less.

    The memory must be filled as samples are trained on: the task's own samples in it are all that teaches new classes
    and earlier ones apart. The model's loss must be the cross-entropy of its logits, without label smoothing or class
    weights.

    Raises:
        ValueError: When the trainer is made, if there is no memory that is filled in training; at the start of training
            outside of a continual run, if samples have no classes, or in a task-incremental sequence; during training,
            if the model gives no logits `[num_rows, num_classes]`.
    """

    needs_classes = needs_all_logits = True

    def attach(self, run: RunContext) -> None:
        """Looks for a memory, and waits for a task; see `Method.attach`."""
        if not any(isinstance(stream.dataset, ReplayBuffer) and stream.dataset.is_online for stream in run.streams):
            raise InvalidValueError.about("memory", f"must be filled in training for {self.name}: ReplayBuffer(1_000).")
        super().attach(run)

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Takes note of the task's classes; see `TaskMethod.begin_task`."""
        super().begin_task(task, model)
        self._new, self._classes = self.run.stream_id(task.name, self.name), list(task.classes or ())

    def term(self, trained: ForwardResult) -> Tensor | None:
        """Returns the difference of the asymmetric loss, this rank's part; see `Method.term`."""
        is_new = trained.micro.stream_ids == self._new
        if not is_new.any():
            return None
        logits = class_logits(trained.output, len(is_new), self.name)
        difference = logits[:, self._classes].logsumexp(dim=-1) - logits.logsumexp(dim=-1)
        difference = difference.where(torch.from_numpy(is_new).to(difference.device), 0.0)
        factors = self.run.passes.loss_factors()
        weight = 1.0 if factors is None else float(factors[self._new])
        return self.run.mean_over_step(weight * difference, trained)
