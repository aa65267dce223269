from pathlib import Path
from typing import Any

import pytest

from mixer import LossChange, Uniform
from mixer.utils.errors import InvalidTypeError
from tests.helpers import Tokens, three_streams
from tests.mixer.trainer.runs import make
from tests.refusals import refused

OF_EVALUATIONS = LossChange(loss="evaluation")


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"batch_size": 0}, "batch_size"),
        ({"batch_size": 8.0}, "batch_size"),
        ({"mixing": {"a": 1, "b": 1}}, "Fixed: weights"),
        ({"mixing": Uniform}, "mixing"),
        ({"train_dataset": {"other": Tokens(3, 1)}}, "name"),
        ({"train_dataset": 3}, "dataset"),
        ({"dataloader_drop_last": True, "per_device_train_batch_size": 64}, "dataloader_drop_last"),
    ],
)
def test_what_does_not_fit_is_refused_at_construction(tmp_path: Path, changes: dict[str, Any], option: str) -> None:
    with refused(option, kind=(ValueError, TypeError)):
        make(tmp_path, **changes)


@pytest.mark.parametrize(
    ("changes", "option"),
    [
        ({"eval_dataset": {"worst": Tokens(3, 1)}}, "eval_dataset"),
        ({"mixing": OF_EVALUATIONS}, "eval_dataset"),
        ({"mixing": OF_EVALUATIONS, "eval_dataset": three_streams()}, "eval_strategy"),
    ],
)
def test_evaluations_that_do_not_fit_are_refused(tmp_path: Path, changes: dict[str, Any], option: str) -> None:
    with refused(option):
        make(tmp_path, **changes)


def test_what_nobody_observes_and_other_data_after_construction_are_refused(tmp_path: Path) -> None:
    class Psychic(Uniform):
        needs = ("future",)

    with refused("needs", kind=InvalidTypeError):
        make(tmp_path, mixing=Psychic())
    trainer = make(tmp_path)
    trainer.train_dataset = Tokens(4, 1)
    with refused("train_dataset"):
        trainer.train()
