"""Avalanche on the protocols of images, where `make peers` has installed it: the same tasks, weights and steps.

Each task has a fresh optimizer, as a `ContinualRun` has by default, and tasks are scored before the first and after
each. The reservoir is filled at a task's end, and A-GEM's memory is as many samples of each task: Avalanche's own ways.
"""

import importlib
import sys
import time
import warnings
from functools import partial
from pathlib import Path

from torch import nn
from transformers import set_seed

from benchmarks.continual.protocols import A_GEM_BATCH, Protocol
from benchmarks.peak import Peak
from benchmarks.peers.contestants import version_of
from tasks.metrics.metrics import all_metrics
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.task import TaskSequence

PREFIX = "avalanche-"
NAMES = tuple(PREFIX + name for name in ("fine-tune", "er-reservoir", "a-gem"))
_FOLDER = Path(sys.prefix) / "avalanche"  # apart, as `make peers` installs it


def why_unfit(name: str, protocol: Protocol) -> str | None:
    """Says why Avalanche cannot run a method here.

    Args:
        name: The method.
        protocol: The protocol.

    Returns:
        The reason and the way out; `None` if it can.
    """
    if version_of("avalanche-lib", _FOLDER) is None:
        return f"{name} needs Avalanche, which is not installed: `make peers` makes an environment that has it."
    if not protocol.is_of_digits or protocol.scenario == "task":
        return f"{name} is for images and one head. Take split-mnist, permuted-mnist-10 or another of them."
    return None


def run_with_avalanche(protocol: Protocol, name: str, memory: int, seed: int, data_dir: Path) -> dict[str, float]:
    """Trains on the protocol's tasks once.

    Args:
        protocol: The protocol.
        name: The method.
        memory: Entries of the memory, as the protocol counts them.
        seed: Seed of the weights, of the tasks and of every order.
        data_dir: Folder of the data.

    Returns:
        What `benchmarks.continual.command.run_once` returns.
    """
    sys.path.append(str(_FOLDER))
    warnings.filterwarnings("ignore", module="avalanche")
    importlib.import_module("benchmarks.continual.avalanche_parts")  # neither its time nor its memory counts
    peak = Peak()
    set_seed(seed)
    tasks, method = protocol.sequence(data_dir, seed), name.removeprefix(PREFIX)
    model = protocol.model(seed, data_dir)
    peak.forget()  # what reading the files took
    started = time.process_time()
    matrix, seconds = _trained(protocol, method, tasks, model, memory)
    per_step = {"er-reservoir": protocol.batch_size, "a-gem": A_GEM_BATCH}.get(method, 0) / protocol.batch_size
    samples = [protocol.training["num_train_epochs"] * len(task.train) for task in tasks]
    of_second = (1 + per_step) * samples[1] / seconds[1]  # the first task that replays
    first, last = of_second if per_step else samples[0] / seconds[0], (1 + per_step) * samples[-1] / seconds[-1]
    pace = {"first_rate": first, "last_rate": last, "last_over_first": last / first}
    metrics = {metric: 100.0 * value for metric, value in all_metrics(matrix).items()}
    return {**metrics, **pace, "seconds": time.process_time() - started, **peak.figures()}


def _trained(
    protocol: Protocol, method: str, tasks: TaskSequence, model: nn.Module, memory: int
) -> tuple[ScoreMatrix, list[float]]:
    """Trains, and gives the scores and each task's seconds."""
    from avalanche.benchmarks import benchmark_from_datasets

    import benchmarks.continual.avalanche_parts as avalanche

    data, logits = avalanche.Data(tasks), avalanche.Logits(model)
    benchmark = benchmark_from_datasets(train=data.train, test=data.test)
    new_optimizer = partial(avalanche.new_optimizer, logits, protocol.training["optim"], protocol.rate(method))
    plugins = _plugins(method, 0 if not memory else protocol.capacity(memory, len(tasks)), protocol, len(tasks))
    settings = protocol.batch_size, protocol.training["num_train_epochs"], plugins
    strategy = avalanche.new_strategy(logits, new_optimizer(), *settings)
    matrix, seconds = ScoreMatrix(tasks.names), list[float]()

    def score(after: int) -> None:
        accuracies = avalanche.accuracies(strategy, benchmark.test_stream, len(tasks))
        matrix.record(after, dict(zip(tasks.names, accuracies, strict=True)))

    score(0)
    for number, experience in enumerate(benchmark.train_stream):
        strategy.optimizer = new_optimizer()
        before = time.perf_counter()
        strategy.train(experience)
        seconds.append(time.perf_counter() - before)
        score(number + 1)
    return matrix, seconds


def _plugins(method: str, capacity: int, protocol: Protocol, num_tasks: int) -> list[object]:
    from avalanche.training.plugins import AGEMPlugin

    import benchmarks.continual.avalanche_parts as avalanche

    if method == "a-gem":
        return [AGEMPlugin(capacity // num_tasks, A_GEM_BATCH)]
    return [avalanche.replay(capacity, protocol.batch_size)] if capacity else []
