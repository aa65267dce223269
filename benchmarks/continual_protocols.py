"""Published protocols of continual learning, exactly as far as they are known, and what was published with them.

*tiny-episodic* (Chaudhry et al. 2019, arXiv:1902.10486): 17 tasks of permuted MNIST of 1,000 training examples each
and the whole test set; MLP 784-256-256-10, weights from a truncated normal of deviation 0.1, biases 0.1; SGD 0.1,
batches of 10 new samples and 10 of memory in one mean loss, one pass; memory of m a class and task. A-GEM takes up to
256 of memory.

*split-mnist* (Hsu et al. 2018, arXiv:1810.12488): 5 tasks of 2 classes, class-incremental; MLP of two hidden layers
of 400, Adam 1e-3, batches of 128 new samples and as many old ones, 4 epochs a task; memory is filled at each task's
end.

*permuted-mnist-20* (Buzzega et al. 2020, arXiv:2004.07211): 20 tasks of permuted MNIST of 60,000; MLP of two hidden
layers of 100, SGD, batches of 128 and 128 of memory, one epoch; learning rate 0.2, and 0.1 for DER++; α = 1, β = 1.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from transformers import TrainingArguments

from mixer.method import Method
from mixer.policies import Policy
from replay import AGEM, DER, DERPlusPlus, ReplayBuffer, ReplayRatio
from replay.selection import Ring
from tasks.mlp import MLPConfig, MLPForImageClassification
from tasks.sequences import by_class, permuted
from tasks.sources import npz
from tasks.task import TaskSequence

_A_GEM_BATCH = 256


@dataclass(frozen=True)
class Protocol:
    """How tasks are trained.

    Args:
        sequence: Gives the tasks, by the data's folder and a seed.
        network: Arguments of the perceptron.
        training: Training arguments.
        batch_size: New samples of an update.
        is_per_class: Whether the memory is counted a class and task.
        is_online: Whether the memory is filled as samples are trained on; else at a task's end.
        learning_rates: Learning rates of methods that have another one.
        published: What was published, by method and memory.
    """

    sequence: Callable[[Path, int], TaskSequence]
    network: Mapping[str, Any]
    training: Mapping[str, Any]
    batch_size: int
    is_per_class: bool
    is_online: bool
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    published: Mapping[tuple[str, int], str] = field(default_factory=dict)

    def model(self) -> MLPForImageClassification:
        """Makes the model."""
        return MLPForImageClassification(MLPConfig(**self.network))

    def arguments(self, folder: str, seed: int, method: str) -> TrainingArguments:
        """Gives the training arguments.

        Args:
            folder: The output folder.
            seed: The seed.
            method: The method.

        Returns:
            The arguments of each task's run.
        """
        changes = {"learning_rate": self.learning_rates[method]} if method in self.learning_rates else {}
        return TrainingArguments(
            folder,
            seed=seed,
            per_device_train_batch_size=4 * _A_GEM_BATCH,
            lr_scheduler_type="constant",
            max_grad_norm=0.0,
            logging_strategy="no",
            save_strategy="no",
            report_to="none",
            disable_tqdm=True,
            use_cpu=True,
            **{**self.training, **changes},
        )


@dataclass(frozen=True)
class Setting:
    """What a method adds to a run.

    Args:
        memory: The buffer, or `None`.
        mixing: How much of it is replayed.
        methods: Gives what else takes part.
        options: Further arguments of the run.
    """

    memory: ReplayBuffer | None = None
    mixing: Policy | None = None
    methods: Callable[[], Sequence[Method]] | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


def _buffer(protocol: Protocol, memory: int, num_tasks: int, is_ring: bool = False) -> ReplayBuffer:
    capacity = memory * 10 * num_tasks if protocol.is_per_class else memory
    selection = Ring(slots_per_group=memory) if is_ring else "Reservoir"
    return ReplayBuffer(capacity, selection, is_online=protocol.is_online)


def _fine_tune(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    return Setting()


def _reservoir(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    return Setting(_buffer(protocol, memory, num_tasks))


def _ring(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    return Setting(_buffer(protocol, memory, num_tasks, is_ring=True))


def _a_gem(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    ratio = _A_GEM_BATCH / (_A_GEM_BATCH + protocol.batch_size)
    mixing = ReplayRatio(ratio, additional=True)
    return Setting(_buffer(protocol, memory, num_tasks, is_ring=protocol.is_per_class), mixing, lambda: [AGEM()])


def _der(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    return Setting(_buffer(protocol, memory, num_tasks), methods=lambda: [DER(alpha=1.0)])


def _der_plus_plus(protocol: Protocol, memory: int, num_tasks: int) -> Setting:
    return Setting(
        _buffer(protocol, memory, num_tasks),
        methods=lambda: [DERPlusPlus(alpha=1.0, beta=1.0, second="again")],
        options={"second_draw": "again"},
    )


METHODS: dict[str, Callable[[Protocol, int, int], Setting]] = {
    "fine-tune": _fine_tune,
    "er-reservoir": _reservoir,
    "er-ring": _ring,
    "a-gem": _a_gem,
    "der": _der,
    "der++": _der_plus_plus,
}


def _permuted(num_tasks: int, samples_per_task: int | None) -> Callable[[Path, int], TaskSequence]:
    def sequence(folder: Path, seed: int) -> TaskSequence:
        train, evaluation = npz(folder / "mnist.npz")
        options = {"samples_per_task": samples_per_task, "first_is_identity": False}
        return permuted(train, evaluation, num_tasks, seed, **options)

    return sequence


def _split(folder: Path, seed: int) -> TaskSequence:
    return by_class(*npz(folder / "mnist.npz"), 2)


PROTOCOLS = {
    "tiny-episodic": Protocol(
        _permuted(17, 1_000),
        {"hidden_sizes": (256, 256), "initial_deviation": 0.1, "initial_bias": 0.1},
        {"optim": "sgd", "learning_rate": 0.1, "num_train_epochs": 1},
        batch_size=10,
        is_per_class=True,
        is_online=True,
        published={
            ("fine-tune", 0): "53.5 ± 1.5",
            **{("er-reservoir", m): acc for m, acc in ((1, "68.9"), (3, "75.2"), (5, "76.2"), (15, "79.8"))},
            **{("er-ring", m): acc for m, acc in ((1, "70.2"), (3, "73.5"), (15, "79.4"))},
            **{("a-gem", m): acc for m, acc in ((1, "62.1"), (3, "63.2"), (5, "64.1"), (15, "66.0"))},
        },
    ),
    "split-mnist": Protocol(
        _split,
        {"hidden_sizes": (400, 400)},
        {"optim": "adamw_torch", "learning_rate": 1e-3, "num_train_epochs": 4},
        batch_size=128,
        is_per_class=False,
        is_online=False,
        published={
            ("fine-tune", 0): "19.71 ± .08",
            ("er-reservoir", 1_100): "90.78 ± .85",
            ("er-reservoir", 4_400): "95.59 ± .49",
        },
    ),
    "permuted-mnist-20": Protocol(
        _permuted(20, None),
        {"hidden_sizes": (100, 100)},
        {"optim": "sgd", "learning_rate": 0.2, "num_train_epochs": 1},
        batch_size=128,
        is_per_class=False,
        is_online=True,
        learning_rates={"der++": 0.1},
        published={
            ("fine-tune", 0): "40.7",
            ("er-reservoir", 200): "72.4",
            ("der", 200): "81.7",
            ("der++", 200): "83.6",
            ("er-reservoir", 500): "80.6",
            ("der++", 500): "88.2",
            ("er-reservoir", 5_120): "89.9",
            ("der++", 5_120): "92.3",
        },
    ),
}
