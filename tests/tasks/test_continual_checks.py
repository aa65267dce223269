"""What a continual run refuses beside an engine."""

from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch

from replay import ReplayBuffer
from tasks.continual.continual_checks import check_classes, check_engine, warn_of_same_rows
from tasks.task import Task, TaskSequence
from tests.mixer.trainer.test_engines import trainer_with
from tests.refusals import refused

CASES: list[tuple[tuple[str, ...], dict[str, Any], str]] = [
    (("zero3",), {}, "model"),
    (("fsdp2", "zero1", "zero2"), {"keeps_optimizer": True}, "optimizer"),
    (("fsdp2", "zero1", "zero2"), {"memory": ReplayBuffer(8, "Herding", is_online=False)}, "memory"),
]


@pytest.mark.parametrize(("engines", "wish", "option"), CASES)
def test_what_an_engine_cannot_give_is_refused(engines: tuple[str, ...], wish: dict[str, Any], option: str) -> None:
    plain: dict[str, Any] = {"keeps_optimizer": False, "memory": ReplayBuffer(8)}
    for engine in engines:
        with refused(option):
            check_engine(trainer_with(engine), **{**plain, **wish})
    for engine in ("fsdp2", "zero1", "zero2"):
        check_engine(trainer_with(engine), **plain)
    check_engine(trainer_with("ddp"), **{**plain, **wish})


def _sequence(*names: list[str], same: bool = False) -> TaskSequence:
    def rows(number: int, own: list[str]) -> datasets.Dataset:
        table = datasets.Dataset.from_dict({"x": [3 * number, 3 * number + 1, 3 * number + 2], "label": [0, 1, 2]})
        return table.cast_column("label", datasets.ClassLabel(names=own))

    sets = [(rows(2 * number, own), rows(2 * number + 1, own)) for number, own in enumerate(names)]
    tasks = [Task(f"task {k}", train, train if same else held) for k, (train, held) in enumerate(sets)]
    return TaskSequence(tasks, scenario="domain")


def test_tasks_of_one_head_number_their_classes_alike() -> None:
    model, moods = torch.nn.Linear(2, 2), ["bad", "fine", "good"]
    check_classes(model, _sequence(moods, moods))
    with pytest.raises(ValueError, match=r"Task 'task 1': its labels are .*those of task 'task 0'"):
        check_classes(model, _sequence(moods, ["good", "fine", "bad"]))


def test_tasks_that_are_evaluated_on_what_they_train_on_are_named(caplog: pytest.LogCaptureFixture) -> None:
    args: Any = SimpleNamespace(process_index=0)
    for same in (False, True):
        warn_of_same_rows(_sequence(["a", "b", "c"], same=same), args)
    [record] = caplog.records
    assert isinstance(record.args, tuple)
    assert "3 of 3 different rows of the evaluation set of 'task 0' are in the task 'task 0'" in str(record.args[0])
