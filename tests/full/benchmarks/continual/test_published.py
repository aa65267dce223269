"""Protocols of continual learning, on requests and texts that are made up."""

import dataclasses
import re
from functools import partial
from pathlib import Path

import pytest

from benchmarks.continual import text
from benchmarks.continual.command import main, run_once
from benchmarks.continual.methods import METHODS
from benchmarks.continual.protocols import PROTOCOLS
from benchmarks.continual.results import Run
from benchmarks.made_up_data import make_data
from tests.tasks.data import write_intents

PROTOCOL, TEXT = PROTOCOLS["clinc150"], PROTOCOLS["text-domains"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path: Path = tmp_path_factory.mktemp("data")
    write_intents(path / "clinc150", {"bank": ["pay", "owe"], "trip": ["fly", "stay"]}, num_train=12, num_test=5)
    return path


def test_bounds_and_a_memory_between_them(folder: Path) -> None:
    quicker = dataclasses.replace(
        PROTOCOL, training={**PROTOCOL.training, "num_train_epochs": 8, "learning_rate": 5e-3}
    )
    found = {
        m: run_once(quicker, m, 8, 1, folder, folder)["average_accuracy"] for m in ("fine-tune", "er-ring", "offline")
    }
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
        ("split-mnist", "er-loss-aware", "LossAware goes by the loss .* filled at each task's end"),
        ("tiny-episodic", "er-herding", "er-herding: Herding reads a whole task again at its end, but this protocol"),
        ("permuted-mnist-10", "icarl", "icarl is for new classes .* domain-incremental. Take a class-incremental one"),
        ("split-mnist", "o-lora", "o-lora is for language models, but .* a classifier. Take text-domains"),
        ("text-domains", "icarl", "icarl goes by classes, but blocks of text have none"),
        ("split-mnist", "avalanche-a-gem", "needs Avalanche, which is not installed: `make peers`"),
    ],
)
def test_methods_without_a_place_are_refused(
    protocol: str, method: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        main(["--protocol", protocol, "--method", method, "--data-dir", "nowhere"])
    assert re.search(f"{protocol}: .*{message}", capsys.readouterr().err)


def test_the_report_sums_up_the_runs_of_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    figures = {"seconds": 10.0, "growth_bytes": 2e8, "first_rate": 1e3, "last_over_first": 1.0, "forgetting": 2.0}
    for seed, accuracy in ((1, 89.0), (2, 91.0)):
        row = Run("split-mnist", "er-reservoir", 1_100, seed)
        row.write(tmp_path, {**figures, "average_accuracy": accuracy})
    main(["--report", "--folder", str(tmp_path)])
    row = "split-mnist | er-reservoir | 1,100 | 2 | 90.0 ± 1.4 | 90.78 ± .85 | 2.0 | 10 | 200 | 1,000 | 1.00"
    assert capsys.readouterr().out.splitlines()[2:] == [f"| {row} |"]


def _run_on_text(method: str, base: Path, data: Path) -> dict[str, float]:
    """Runs a small form of `text-domains`."""
    tiny = dataclasses.replace(
        TEXT,
        sequence=lambda folder, seed: text.sequence(folder, seed)[2:],
        model=partial(text.model, num_steps=3),
        training={**TEXT.training, "max_steps": 2, "warmup_steps": 0},
        batch_size=4,
    )
    return run_once(tiny, method, 6, 1, data if data.exists() else make_data(data), base)


@pytest.mark.parametrize("method", ["offline", "inf-lora"])
def test_methods_for_text_begin_with_a_base_that_is_kept(method: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    base, data = (tmp_path_factory.getbasetemp() / name for name in ("base", "texts"))
    assert 2.0 < _run_on_text(method, base, data)["average_accuracy"] < 6.0  # nats a byte
    assert [path.name for path in base.iterdir()] == ["text-base-3-1.safetensors"]


def test_offline_is_scored_by_the_mean_over_tasks(folder: Path) -> None:
    tasks = PROTOCOL.sequence(folder, 1)
    arranged, score = METHODS["offline"](PROTOCOL, 0, 2).arranged(tasks)
    assert (arranged.names, len(arranged["all"].train), len(arranged["all"].evaluation)) == (("all",), 48, 20)
    assert score is not None
    assert METHODS["fine-tune"](PROTOCOL, 0, 2).arranged(tasks) == (tasks, None)
