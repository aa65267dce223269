"""Means, spreads and tests over seeds, as SciPy has them."""

import numpy as np
import pytest
from scipy import stats

from tasks.metrics.metrics import all_metrics
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.metrics.seed_scores import SeedScores
from tests.refusals import refused

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
