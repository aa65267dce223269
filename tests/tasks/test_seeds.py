"""Continual runs with several seeds: each is what it would be by itself, and what is finished is not run again."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from transformers import TrainingArguments

from mixer.utils.errors import InvalidTypeError
from replay import ReplayBuffer
from tasks.continual import ContinualRun, run_seeds
from tasks.metrics.metrics import all_metrics
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.metrics.seed_scores import SeedScores
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


RANDOM = np.random.default_rng(0)
TABLES = {run: {seed: RANDOM.uniform(size=(4, 3)) for seed in range(1, 6)} for run in ("one", "two")}


def matrix(table: np.ndarray, names: tuple[str, ...] = ("a", "b", "c")) -> ScoreMatrix:
    made = ScoreMatrix(names, held_out=["general"])
    for after, row in enumerate(table):
        made.record(after, dict(zip(names, row, strict=True)))
        made.record_held_out(after, {"general": row[0]})
    made.record_step(2, 5, {names[0]: table[2, 0], names[1]: table[2, 1]})
    return made


def scores(run: str, seeds: range = range(1, 6), **orders: str) -> SeedScores:
    return SeedScores(
        {seed: matrix(TABLES[run][seed]) for seed in seeds}, {seed: orders.get(f"of_{seed}", "abc") for seed in seeds}
    )


def accuracies(run: str, seeds: range = range(1, 6)) -> list[float]:
    return [TABLES[run][seed][3].mean() for seed in seeds]


def test_means_and_spreads_are_over_seeds() -> None:
    found, tables = scores("one"), [*TABLES["one"].values()]
    np.testing.assert_allclose(found.scores, np.mean(tables, axis=0))
    np.testing.assert_allclose(found.spread, np.std(tables, axis=0, ddof=1))
    accuracy, forgetting = found.metrics()["average_accuracy"], found.metrics()["forgetting"]
    assert accuracy[:2] == pytest.approx((np.mean(accuracies("one")), np.std(accuracies("one"), ddof=1)))
    lost = [np.mean([table[1:3, task].max() - table[3, task] for task in (0, 1)]) for table in tables]
    assert forgetting[:2] == pytest.approx((np.mean(lost), np.std(lost, ddof=1)))
    assert all_metrics(found.mean)["forgetting"] != pytest.approx(forgetting.mean)  # a maximum is not linear
    assert found.mean.held_out()["general"][3] == pytest.approx(np.mean([table[3, 0] for table in tables]))
    course = found.mean.course.to_pandas()
    assert course.loc[(2, 5), "b"] == pytest.approx(np.mean([table[2, 1] for table in tables]))
    assert "seeds 1, 2, 3, 4, 5" in str(found)


def test_seeds_with_the_same_tasks_are_paired() -> None:
    difference = scores("one").against(scores("two"))["average_accuracy"]
    interval = stats.ttest_rel(accuracies("one"), accuracies("two")).confidence_interval()
    assert difference.mean == pytest.approx(np.mean(interval))
    assert difference.bound == pytest.approx(np.ptp(interval) / 2, rel=5e-4)
    assert difference.seeds == (1, 2, 3, 4, 5)
    fewer = scores("one", range(1, 4)).against(scores("two", range(2, 6)))["average_accuracy"]
    assert fewer.seeds == (2, 3)
    assert fewer.mean == pytest.approx(np.mean(np.subtract(accuracies("one"), accuracies("two"))[1:3]))


def test_seeds_with_other_tasks_or_in_another_order_are_not_paired() -> None:
    others = SeedScores(scores("two").by_seed, dict.fromkeys(range(1, 6), "cba"))
    for other in (others, SeedScores(others.by_seed)):  # and where nothing is known about the order
        difference = scores("one").against(other)["average_accuracy"]
        interval = stats.ttest_ind(accuracies("one"), accuracies("two")).confidence_interval()
        assert difference.mean == pytest.approx(np.mean(interval))
        assert difference.bound == pytest.approx(np.ptp(interval) / 2, rel=5e-4)
        assert difference.seeds == ()
    single = scores("one", range(1, 2)).against(scores("two", range(1, 2)))["average_accuracy"]
    assert np.isnan(single.bound)


def test_a_score_that_one_seed_lacks_is_not_filled_in() -> None:
    table = TABLES["one"][2].copy()
    table[3, 1] = np.nan
    found = SeedScores({1: matrix(TABLES["one"][1]), 2: matrix(table)})
    assert np.argwhere(np.isnan(found.scores)).tolist() == [[3, 1]]
    assert found.metrics()["average_accuracy"].num_runs == 1
    assert found.mean.failures == {(3, "b"): "the evaluation gave NaN"}
    orders = SeedScores({1: matrix(TABLES["one"][1]), 2: matrix(TABLES["one"][2], ("c", "b", "a"))})
    assert orders.mean.task_names == ("task 1", "task 2", "task 3")
    with refused("by_seed"):
        SeedScores({1: matrix(table), 2: ScoreMatrix(["a"])})
