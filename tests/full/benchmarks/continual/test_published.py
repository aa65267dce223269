"""Protocols of continual learning, on requests that are made up."""

import dataclasses
from pathlib import Path

import pytest

from benchmarks.continual.command import run_once
from benchmarks.continual.methods import METHODS
from benchmarks.continual.protocols import PROTOCOLS
from tests.tasks.data import write_intents

PROTOCOL = PROTOCOLS["clinc150"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("data")
    write_intents(path / "clinc150", {"bank": ["pay", "owe"], "trip": ["fly", "stay"]}, num_train=12, num_test=5)
    return path


def test_bounds_and_a_memory_between_them(folder: Path) -> None:
    quicker = dataclasses.replace(
        PROTOCOL, training={**PROTOCOL.training, "num_train_epochs": 8, "learning_rate": 5e-3}
    )
    found = {m: run_once(quicker, m, 8, 1, folder)["average_accuracy"] for m in ("fine-tune", "er-ring", "offline")}
    assert found["fine-tune"] == 50.0  # the last task alone
    assert found["offline"] == 100.0
    assert found["er-ring"] > 60.0


def test_a_memory_is_counted_as_the_protocol_counts_it() -> None:
    ring = METHODS["er-ring"](PROTOCOLS["tiny-episodic"], 3, 17).memory
    assert (ring.capacity, ring.selection.slots_per_group) == (3 * 10 * 17, 3)
    assert METHODS["er-ring"](PROTOCOL, 300, 10).memory.selection.slots_per_group is None
    assert METHODS["er-class-balanced"](PROTOCOLS["split-mnist"], 1_100, 5).memory.is_online is False


@pytest.mark.parametrize(
    ("protocol", "method", "message"),
    [
        ("split-mnist", "er-surprise", "er-surprise: Surprise goes by the loss of samples as they are trained on, but"),
        ("split-mnist", "er-loss-aware", "LossAware goes by the loss .* filled at each task's end"),
        ("split-mnist", "er-gradient-diversity", "GradientDiversity goes by the gradient"),
        ("tiny-episodic", "er-herding", "er-herding: Herding reads a whole task again at its end, but this protocol"),
        ("permuted-mnist-20", "er-k-center", "Take a protocol of several epochs, such as split-mnist"),
    ],
)
def test_methods_that_a_protocol_has_no_place_for(protocol: str, method: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        METHODS[method](PROTOCOLS[protocol], 100, 5)


def test_offline_is_scored_by_the_mean_over_tasks(folder: Path) -> None:
    tasks = PROTOCOL.sequence(folder, 1)
    arranged, score = METHODS["offline"](PROTOCOL, 0, 2).arranged(tasks)
    assert (arranged.names, len(arranged["all"].train), len(arranged["all"].evaluation)) == (("all",), 48, 20)
    assert score is not None
    assert METHODS["fine-tune"](PROTOCOL, 0, 2).arranged(tasks) == (tasks, None)
