"""The moment at which the learning rate begins to fall, by hand from each schedule's formula."""

from functools import partial
from pathlib import Path

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, StepLR
from transformers import TrainingArguments

from mixer import Budget
from mixer.loading.learning_rate import decay_in_words, decay_step
from mixer.mixture.clock import Clock
from tests.refusals import refused


@pytest.mark.parametrize(
    ("kind", "warmup", "options", "expected"),
    [
        ("warmup_stable_decay", 4, {"num_decay_steps": 6}, 14),
        ("warmup_stable_decay", 0.1, {"num_decay_steps": 2, "num_stable_steps": 5}, 7),
        ("linear", 5, {}, 5),
        ("cosine", 0, {}, 0),
        ("constant_with_warmup", 3, {}, None),
        ("cosine_with_restarts", 0, {"num_cycles": 2}, None),
    ],
)
def test_of_the_arguments(kind, warmup, options, expected, tmp_path) -> None:
    args = TrainingArguments(str(tmp_path), lr_scheduler_type=kind, warmup_steps=warmup, lr_scheduler_kwargs=options)
    if expected is not None:
        assert decay_step(args, None, 20) == expected
        return
    with refused("decay"):
        decay_step(args, None, 20)


def test_of_a_schedule_of_the_users_own(tmp_path: Path) -> None:
    args, optimizer = TrainingArguments(str(tmp_path)), torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    assert decay_step(args, LambdaLR(optimizer, lambda step: 1.0 if step <= 9 else 0.5), 20) == 9
    with refused("decay"):
        decay_step(args, StepLR(optimizer, 5), 20)


@pytest.mark.parametrize(
    ("kwargs", "is_constant", "said"),
    [({"num_decay_steps": 20}, False, "90.0% of the run"), ({"num_decay_steps": 20}, True, None), ({}, False, None)],
)
def test_a_decay_in_steps_of_a_run_in_data_is_said_as_a_share(
    kwargs: dict[str, int], is_constant: bool, said: str | None
) -> None:
    kind = "warmup_stable_decay" if kwargs else "cosine"
    args = TrainingArguments("out", lr_scheduler_type=kind, lr_scheduler_kwargs=kwargs, use_cpu=True)
    clock = Clock(8, 1600, Budget(epochs=1), is_constant=is_constant, decay_step=partial(decay_step, args, None))
    found = decay_in_words(args, clock)
    assert found is None if said is None else said in str(found)
