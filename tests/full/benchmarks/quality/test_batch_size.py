import pytest

from benchmarks.quality.batch_size.command import END, HALF, summarise
from benchmarks.quality.batch_size.rules import SMALL
from benchmarks.quality.batch_size.runs import Course


def course(*losses: float, seconds: float = 1.0) -> Course:
    places = range(1, len(losses) + 1)
    return Course(list(losses), [10 * k for k in places], [160 * k for k in places], [seconds * k for k in places], 16)


class TestToTarget:
    def test_it_lies_between_the_evaluations(self) -> None:
        assert course(4.0, 3.0, 2.0).to_target(2.25) == {"steps": 27.5, "samples": 440.0, "seconds": 2.75}

    def test_the_first_crossing_counts(self) -> None:
        mark = course(4.0, 2.0, 3.0, 1.0).to_target(2.0)
        assert mark is not None
        assert mark["steps"] == 20.0

    def test_the_first_evaluation_stands_for_itself(self) -> None:
        assert course(1.0, 0.5).to_target(2.0) == {"steps": 10.0, "samples": 160.0, "seconds": 1.0}

    def test_a_target_that_is_not_reached(self) -> None:
        assert course(4.0, 3.0).to_target(2.0) is None


def test_the_targets_are_those_of_the_worst_small_run_and_ratios_are_by_seed() -> None:
    courses = {
        f"constant {SMALL}": [course(3.0, 1.0), course(3.0, 2.0, seconds=2.0)],
        "other": [course(3.0, 1.0, seconds=0.5), course(4.0, 3.0)],
    }
    figures = summarise(courses)
    assert figures["targets"][HALF]["loss"] == 3.0
    assert figures["targets"][HALF]["configurations"]["other"]["seconds_ratio"] == [0.5, 1.0]
    assert figures["targets"][END]["loss"] == pytest.approx(2.04)
    assert figures["targets"][END]["configurations"]["other"]["seconds_ratio"] == [0.5, None]
    own = figures["equal_data"]["other"]
    assert own["seconds_ratio"] == [0.5, 0.5]
    assert own["final_loss"] == [1.0, 3.0]
