"""Short runs of a recipe have the passes and the limits of the whole run."""

from typing import Any

import numpy as np
import pytest
from datasets import Dataset
from jsonargparse import Namespace

from mixer import Budget, Fixed, Floor, MarginalValue, Safeguard, Scheduled, Smoothed, Stream
from mixer.mixture.clock import Clock
from mixer.mixture.streams import describe
from mixer.policies import Policy
from mixer.schedules import AdaBatch, CriticalBatchWarmup, Ramp, Schedule
from mixer.tools.analysis.search.short_recipe import (
    limits_in_data,
    shorten,
    shorten_schedule,
    varied,
    weights_in,
    with_weights,
)
from replay import ReplayBound, ReplayBuffer

ROWS = Dataset.from_dict({"x": np.arange(200)})
A, B = Stream("a", ROWS), Stream("b/1", ROWS.select(range(4)))


def started(policy: Policy, streams: list[Stream]) -> dict[str, float]:
    decision = policy.start(describe(streams))
    weights = decision.weights / decision.weights.sum()
    return dict(zip([own.name for own in streams], weights.tolist(), strict=True))


def recipe(streams: dict[str, dict[str, Any]], **training: Any) -> Any:
    base = {"rows_share": 1.0, "max_samples": None, "max_tokens": None, "max_labels": None, "max_epochs": 3.0}
    usual = {"max_steps": 400, "warmup_steps": 40, "lr_scheduler_kwargs": None, "eval_strategy": "no"}
    own = Namespace({**usual, "eval_steps": None, "seed": 1, **training})
    return Namespace(streams={name: {**base, **own} for name, own in streams.items()}, training=own, budget=None)


def test_streams_are_cut_by_the_share_of_the_steps() -> None:
    streams = {"a": {"max_samples": 900, "max_tokens": 5}, "b/1": {"rows_share": 0.5}}
    config = recipe(streams, lr_scheduler_kwargs={"num_decay_steps": 80, "min_lr_ratio": 0.1})
    notes = shorten(config, [A, B], Fixed(), 60, 400)
    first, second = config.streams["a"], config.streams["b/1"]
    assert (first["rows_share"], first["max_samples"], first["max_tokens"], first["max_epochs"]) == (0.15, 135, 1, 3.0)
    assert second["rows_share"] == 0.075
    training = config.training
    assert (training.max_steps, training.warmup_steps, training.eval_steps) == (60, 6, 60)
    assert training.lr_scheduler_kwargs == {"num_decay_steps": 12, "min_lr_ratio": 0.1}
    assert ["b--1" in note for note in notes] == [True]  # less than one row of four


def test_rows_that_cannot_be_counted_are_not_cut_and_this_is_said() -> None:
    stream = Stream("endless", ROWS.to_iterable_dataset())
    memory = Stream("memory", ReplayBuffer(10, streams=["a"]))
    config = recipe({"a": {}, "endless": {}, "memory": {}})
    notes = shorten(config, [A, stream, memory], Fixed(), 40, 400)
    assert [own["rows_share"] for own in config.streams.values()] == [0.1, 1.0, 1.0]
    assert ["endless" in notes[0], "memory" in notes[1]] == [True, True]


@pytest.mark.parametrize(("streaming", "share"), [(False, 0.1), (True, 1.0)])
def test_a_stream_of_each_value_of_a_column_is_cut_by_the_recipe_that_makes_them(streaming: bool, share: float) -> None:
    config = recipe({"all": {"data": Namespace(path="x", by="source", streaming=streaming)}})
    shorten(config, [A, B], Fixed(), 40, 400)
    assert config.streams["all"]["rows_share"] == share


@pytest.mark.parametrize(
    ("training", "every"),
    [
        ({"eval_strategy": "steps", "eval_steps": 20}, 2),  # 20 evaluations, as in the recipe
        ({"eval_strategy": "steps", "eval_steps": 0.25}, 10),
        ({}, 4),  # ten
    ],
)
def test_a_limit_that_goes_by_evaluations_has_as_many_of_them(training: dict[str, Any], every: int) -> None:
    bound = ReplayBound(old=["a"])
    started(bound, [A, B])
    config = recipe({"a": {}, "b/1": {}}, **training)
    shorten(config, [A, B], bound, 40, 400)
    assert config.training.eval_steps == every


def test_weights_are_varied_inside_of_what_limits_the_mixture() -> None:
    policy = Floor(Fixed({"a": 3, "b--1": 1}), minimum=0.2)
    outside = started(policy, [A, B])
    found = varied(policy, outside)
    assert found.weights == {"a": 0.75, "b--1": 0.25}  # before the floor
    assert (found.limits, found.others) == (["Floor"], [])
    made = with_weights(policy, {"a": 0.9, "b--1": 0.1})
    assert made["class_path"] == "Floor"
    assert made["init_args"]["minimum"] == 0.2
    assert weights_in(made) == {"a": 0.9, "b--1": 0.1}


def test_the_share_of_old_streams_is_left_to_the_bound_on_their_loss() -> None:
    third = Stream("c", ROWS)
    policy = ReplayBound(0.02, old=["a"], policy=Floor(Fixed({"b--1": 1, "c": 3}), minimum=0.1))
    found = varied(policy, started(policy, [A, B, third]))
    assert found.weights == {"b--1": 0.25, "c": 0.75}
    assert found.limits == ["ReplayBound", "Floor"]
    made = with_weights(policy, {"b--1": 0.5, "c": 0.5})
    assert made["init_args"]["max_rise"] == 0.02
    assert made["init_args"]["policy"]["class_path"] == "Floor"
    assert weights_in(made) == {"b--1": 0.5, "c": 0.5}


@pytest.mark.parametrize(
    ("policy", "others"),
    [
        (Fixed(), []),
        (Safeguard(MarginalValue()), ["Safeguard", "MarginalValue"]),
        (Scheduled([(0.0, [1, 0]), (1.0, [1, 1])]), ["Scheduled"]),
        (Smoothed(Floor(Fixed())), ["Smoothed"]),
    ],
)
def test_policies_that_are_not_in_force_are_named(policy: Policy, others: list[str]) -> None:
    assert varied(policy, started(policy, [A, B])).others == others


@pytest.mark.parametrize("unit", ["samples", "tokens"])
def test_plain_weights_are_in_the_unit_of_the_policy(unit: Any) -> None:
    policy = Fixed([1, 3], unit=unit)
    assert varied(policy, started(policy, [A, B])).unit == unit
    made = with_weights(policy, {"a": 0.5, "b--1": 0.5})
    assert weights_in(made) == {"a": 0.5, "b--1": 0.5}
    assert ("init_args" in made) == (unit == "tokens")


@pytest.mark.parametrize(
    ("schedule", "name", "cut"),
    [
        (Ramp(64, 1000), "over", 100.0),
        (Ramp(64, 0.5, unit="progress"), "over", 0.5),
        (AdaBatch(points=[30, 60], unit="steps"), "points", [3.0, 6.0]),
        (AdaBatch(every=2), "every", 2),  # epochs
        (CriticalBatchWarmup({50: 16, 90: 32}), "sizes", {5.0: 16, 9.0: 32}),
        (CriticalBatchWarmup([(50, 16), (90, 32)]), "sizes", [[5.0, 16], [9.0, 32]]),
    ],
)
def test_what_a_schedule_counts_over_the_run_is_cut(schedule: Schedule, name: str, cut: object) -> None:
    arguments = {name: getattr(schedule, name)}
    shorten_schedule({"init_args": arguments}, schedule, 0.1)
    assert arguments[name] == pytest.approx(cut) if isinstance(cut, float) else arguments[name] == cut


@pytest.mark.parametrize(
    ("budget", "is_constant", "cut"),
    [
        (Budget(tokens=5000), True, {"tokens": 500}),
        (Budget(epochs=2, tokens=5000), False, {"samples": 41, "tokens": 500}),
        (Budget(steps=100), False, {"steps": 10}),
        (Budget(steps=100), True, None),
    ],
)
def test_a_budget_in_data_stays_in_data(budget: Budget, is_constant: bool, cut: dict[str, int] | None) -> None:
    clock = Clock(8, 204, budget, is_constant=is_constant)
    config = recipe({"a": {}, "b/1": {}})
    shorten(config, [A, B], Fixed(), 40, 400, limits_in_data(clock, [A, B]))
    assert (None if config.budget is None else vars(config.budget)) == cut
    assert config.training.max_steps == (40 if cut is None else -1)
    assert config.training.warmup_steps == 4
