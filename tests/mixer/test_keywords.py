"""Misspelt keyword arguments and names of public classes: the one that was meant is named."""

from collections.abc import Callable
from typing import Any

import pytest

from mixer import Budget, Grouping, MixingTrainer, PiKE, Stream, schedules
from mixer.policies.registry import as_policy


@pytest.mark.parametrize(
    ("build", "meant"),
    [
        (lambda: Stream("a", [1], max_passes=2), "max_epochs"),
        (lambda: Stream("a", [1], weigth=2), "weight"),
        (lambda: Stream("a", [1], max_examples=2), "max_samples"),
        (lambda: Budget(token=3), "tokens"),
        (lambda: Grouping("language", max_share={}), "max_shares"),
        (lambda: PiKE(interval=3), "interval_steps"),
        (lambda: schedules.AdaBatch(evry=3), "every"),
        (lambda: MixingTrainer(mixin="Uniform"), "mixing"),
        (lambda: MixingTrainer(evaldataset={}), "eval_dataset"),
    ],
)
def test_a_misspelt_argument_is_named_with_the_one_that_was_meant(build: Callable[[], Any], meant: str) -> None:
    with pytest.raises(TypeError, match=rf"has no argument '\w+'\. Did you mean '{meant}'"):
        build()


def test_the_suggestion_comes_before_the_list_of_all() -> None:
    with pytest.raises(ValueError, match=r"mixing: .*'LosChange'\. Did you mean 'LossChange'\? There are "):
        as_policy("LosChange")


def test_auto_is_a_name_like_the_others() -> None:
    assert type(as_policy("Auto")) is type(as_policy("auto"))
    with pytest.raises(ValueError, match=r"'aito'\. Did you mean 'auto'\? There are auto, "):
        as_policy("aito")
