"""iCaRL: binary losses for each class, and distillation of earlier classes."""

import numpy as np
from torch import Tensor, nn

from mixer.mixture.step_plan import StepPlan
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import RunContext
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.ranges import check_temperature
from replay import ReplayBuffer
from tasks.methods.shared import FrozenModel, TaskContext, TaskMethod, class_logits


class ICaRL(TaskMethod):
    """Trains each output as a classifier of its own: of labels for new classes, of the model before for earlier ones.

    Rebuffi et al. 2017, "iCaRL: Incremental Classifier and Representation Learning", arXiv:1611.07725, algorithm 3:
    the loss is the mean over the samples of a step, new and replayed, of the sum of binary cross-entropies of the
    classes seen so far. Targets are 0 and 1 for the task's classes, and the sigmoid of the model before the task for
    earlier ones. The model's own loss does not count.

    The rest of iCaRL is the memory, `ReplayBuffer(2_000, "Herding", is_online=False)` (algorithms 4 and 5), and the
    classifier, `score=nearest_mean(memory)` (algorithm 1). Costs a copy of the model and a forward a step.

    Args:
        temperature: `T`, above 0, by which the logits of the model before are divided: 1 in the paper, 2 in the code of
            van de Ven and Tolias 2019, arXiv:1904.07734, which keeps more.

    Raises:
        ValueError: If `temperature` is not above 0; when the trainer is made, if there is no memory; at the start of
            training outside of a continual run, if samples have no classes, or in a task-incremental sequence; during
            training, if the model gives no logits `[num_rows, num_classes]`.
    """

    needs = frozenset({"whole weights"})
    needs_classes = needs_all_logits = True

    def __init__(self, temperature: float = 1.0):
        check_temperature("temperature", temperature, "1 and 2 are usual")
        self.temperature = float(temperature)

    def attach(self, run: RunContext) -> None:
        """Looks for a memory, and waits for a task; see `Method.attach`."""
        if not any(isinstance(stream.dataset, ReplayBuffer) for stream in run.streams):
            raise InvalidValueError.about("memory", f"must be given for {self.name}, by 'Herding' say.")
        super().attach(run)

    def begin_task(self, task: TaskContext, model: nn.Module) -> None:
        """Copies the model; see `TaskMethod.begin_task`."""
        super().begin_task(task, model)
        self._seen = list(task.seen)
        self._before = FrozenModel(model, self.run.passes) if task.number else None
        self._earlier = sorted({label for classes in task.earlier for label in classes})

    def factors(self, plan: StepPlan, items: Int64Array) -> FloatArray:
        """Leaves out the model's own loss; see `Method.factors`."""
        return np.zeros(len(items))

    def term(self, trained: ForwardResult) -> Tensor:
        """Returns the loss, this rank's part; see `Method.term`."""
        logits = class_logits(trained.output, len(trained.micro.stream_ids), self.name)
        labels = self.run.passes.prepare_inputs(trained.micro.inputs)["labels"]
        targets = nn.functional.one_hot(labels, logits.shape[1]).to(logits.dtype)
        if self._before is not None:
            before = self._before.logits(trained, self.name)[:, self._earlier]
            targets[:, self._earlier] = (before / self.temperature).sigmoid()
        losses = nn.functional.binary_cross_entropy_with_logits(logits, targets, reduction="none")
        return self.run.mean_over_step(losses[:, self._seen], trained)
