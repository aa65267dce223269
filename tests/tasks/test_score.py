"""What a score may be, and what is said where it cannot be measured."""

import json
import math
from types import SimpleNamespace
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from tasks.score import Score, as_score, score_of
from tasks.task import Task, TaskSequence
from tests.tasks.data import numbered_arrays


def sequence(*have_classes: bool) -> TaskSequence:
    data = {True: numbered_arrays([0, 1]), False: datasets.Dataset.from_dict({"x": [1, 2]})}
    return TaskSequence([Task(f"t{k}", data[own], data[own]) for k, own in enumerate(have_classes)], scenario="free")


def trainer_of(*others: list[Any]) -> Any:
    """A trainer on as many ranks; the others tell what they found."""

    def gathered(own: str) -> list[str]:
        return [own, *map(json.dumps, others)]

    return SimpleNamespace(side_runs=SimpleNamespace(gathered=gathered))


def measured(value: Any, *others: list[Any]) -> tuple[float, str | None]:
    task = sequence(True).tasks[0]
    return score_of(Score(lambda trainer, task: value), trainer_of(*others), task, "after task 1")


class TestWhichScore:
    def test_it_is_the_accuracy_where_all_tasks_have_classes(self) -> None:
        assert as_score(None, sequence(True, True)).metric == "accuracy"
        loss = as_score(None, sequence(True, False))
        assert (loss.metric, loss.higher_is_better) == ("loss", False)
        own = Score(lambda trainer, task: 1.0, "f1")
        assert as_score(own, sequence(False)) is own

    def test_what_is_none_is_refused(self) -> None:
        with pytest.raises(ValueError, match=r"needs classes, which the tasks \['t1'\] have not: say score='loss'"):
            as_score("accuracy", sequence(True, False))
        with pytest.raises(ValueError, match=r"must be 'accuracy', 'loss' or a Score, got 'f1'"):
            as_score("f1", sequence(True))
        with pytest.raises(TypeError, match=r"got function\. Of a function make one that says which way is better"):
            as_score(lambda trainer, task: 1.0, sequence(True))  # type: ignore[arg-type]
        with pytest.raises(TypeError, match=r"must be a function of a trainer and a task, got 0\.5"):
            Score(0.5)  # type: ignore[arg-type]


class TestMeasuring:
    @pytest.mark.parametrize("value", [0.5, np.float32(0.5), torch.tensor(0.5), True])
    def test_any_number_will_do(self, value: Any) -> None:
        assert measured(value) == (float(value), None)

    def test_what_is_none_is_said_and_the_run_goes_on(self) -> None:
        value, why = measured("high")
        assert math.isnan(value)
        assert why is not None
        assert "the score must be a number, got 'high'" in why

    def test_ranks_have_to_agree(self) -> None:
        assert measured(0.5, ["0.5", None]) == (0.5, None)
        value, why = measured(0.5, ["0.25", None])
        assert (math.isnan(value), why) == (
            True,
            "ranks gave different scores, [0.5, 0.25]: reduce them over the ranks",
        )

    def test_of_several_reasons_that_of_the_rank_itself_is_told(self) -> None:
        told = measured(0.5, ["nan", "RemoteError: another rank failed"], ["nan", "ValueError: no labels"])
        assert told[1] == "rank 2: ValueError: no labels"
