"""The work of the continual contest: three protocols on MNIST, the same for both sides.

*split*: 5 tasks of 2 classes, class-incremental (Hsu et al. 2018): a perceptron of two hidden layers of 400, Adam 1e-3
that goes on from task to task, batches of 128 new samples and as many of memory, 4 epochs, 1,100 entries.

*permuted*: 20 tasks (Buzzega et al. 2020), but of 10,000 training samples each, not 60,000: two hidden layers of 100,
SGD 0.2, batches of 128 and 128 of memory, one epoch, 500 entries.

*short*: as *permuted*, but with tasks of 2,000 samples: what a task costs beside its steps shows.

In both a reservoir is filled at each task's end, which is when Avalanche fills it; in the second paper it is filled as
samples come. The accuracy is that after the last task, over the whole test sets of all tasks. Seconds are those of
training and of filling the memory, without evaluating.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from tasks.mlp import mlp
from tasks.sequences import by_class, permuted
from tasks.sources import npz
from tasks.task import TaskSequence

BATCH_SIZE = 128
_SHORT = 2_000  # samples
EVALUATION_BATCH_SIZE = 1_024


@dataclass(frozen=True)
class Protocol:
    """How tasks are learnt.

    Args:
        hidden_sizes: Of the perceptron.
        optim: The Trainer's name of the optimizer.
        learning_rate: Its constant rate.
        epochs: Passes over each task.
        capacity: Entries of the memory.
    """

    hidden_sizes: tuple[int, ...]
    optim: str
    learning_rate: float
    epochs: int
    capacity: int

    def model(self) -> nn.Module:
        """Makes the perceptron, by torch's random state."""
        return mlp(hidden_sizes=self.hidden_sizes)


PROTOCOLS = {
    "split": Protocol((400, 400), "adamw_torch", 1e-3, 4, 1_100),
    "permuted": Protocol((100, 100), "sgd", 0.2, 1, 500),
    "short": Protocol((100, 100), "sgd", 0.2, 1, 500),
}


def read_tasks(options: dict[str, Any]) -> TaskSequence:
    """Gives the tasks.

    Args:
        options: Of the contest: `protocol`, `data_dir`, `seed`, `tasks` and `samples_per_task` of *permuted*.

    Returns:
        The sequence.
    """
    data = npz(Path(options["data_dir"]) / "mnist.npz")
    if options["protocol"] == "split":
        return by_class(*data, 2)
    samples = (
        min(_SHORT, options["samples_per_task"]) if options["protocol"] == "short" else options["samples_per_task"]
    )
    return permuted(*data, options["tasks"], options["seed"], samples_per_task=samples, first_is_identity=False)
