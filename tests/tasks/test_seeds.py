"""Continual runs with several seeds: each is what it would be by itself, and what is finished is not run again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import TrainingArguments

from mixer.utils.errors import InvalidTypeError
from replay import ReplayBuffer
from tasks.continual import ContinualRun, run_seeds
from tasks.mlp import mlp
from tasks.sequences import by_class
from tests.helpers import arguments
from tests.refusals import refused
from tests.tasks.test_continual import data

COMMON = {"max_steps": 2, "save_strategy": "no", "learning_rate": 0.1}


def new_run(args: TrainingArguments) -> ContinualRun:
    """A run of three tasks of one class, whose weights, order of the classes and memory are of the seed."""
    sequence = by_class(data(0), data(1), 1, seed=args.seed)
    return ContinualRun(mlp(num_features=6, hidden_sizes=(4,), num_labels=3), sequence, args, memory=ReplayBuffer(5))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "run"
    run_seeds(new_run, arguments(folder, **COMMON), seeds=[1, 2])
    return folder


def test_each_seed_is_what_it_is_alone(folder: Path, tmp_path: Path) -> None:
    run_seeds(new_run, arguments(tmp_path, seed=2, **COMMON), seeds=1)
    for name in ("scores.json", "03-task_3/end/model.safetensors"):
        assert (tmp_path / "seed-2" / name).read_bytes() == (folder / "seed-2" / name).read_bytes()
        assert (folder / "seed-1" / name).read_bytes() != (folder / "seed-2" / name).read_bytes()


def test_finished_seeds_are_not_run_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trained, train = [], ContinualRun._train_task
    monkeypatch.setattr(
        ContinualRun, "_train_task", lambda run, *rest: trained.append(run.args.seed) or train(run, *rest)
    )
    with refused("seeds"):
        run_seeds(new_run, arguments(folder, **COMMON), seeds=[3, 1, 2])
    assert trained == []
    scores = run_seeds(new_run, arguments(folder, seed=1, **COMMON), seeds=3, resume=True)
    assert trained == [3, 3, 3]
    assert [*scores.by_seed] == [1, 2, 3]
    np.testing.assert_allclose(scores.scores, np.mean([matrix.scores for matrix in scores.by_seed.values()], axis=0))
    same = scores.against(scores)["average_accuracy"]
    assert (same.mean, same.bound, same.seeds) == (0.0, 0.0, (1, 2, 3))


@pytest.mark.parametrize("seeds", [0, -1, True, [], [1, 1], [-1], ["1"], 1.0, "12"])
def test_wrong_seeds_are_refused(seeds: Any, tmp_path: Path) -> None:
    with refused("seeds"):
        run_seeds(new_run, arguments(tmp_path), seeds)
    assert not [*tmp_path.iterdir()]


def test_runs_that_ignore_their_arguments_are_refused(tmp_path: Path) -> None:
    args = arguments(tmp_path, **COMMON)
    with refused("new_run"):
        run_seeds(lambda own: new_run(args), args, [7])
    with refused("new_run", InvalidTypeError):
        run_seeds(lambda own: None, args, [7])  # type: ignore[arg-type, return-value]
