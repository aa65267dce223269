"""The time that a run still takes, and what streams have covered, on part of a line."""

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mixer.ledger.progress.line import RemainingTime, coverage_text
from mixer.utils.text import clock_text, duration_text, short_number


def after(steps: Iterable[tuple[float, float]]) -> RemainingTime:
    """What is known after steps with the share of the run that was done, and the time."""
    remaining = RemainingTime()
    assert remaining.seconds is None
    for progress, now in steps:
        remaining.advance(progress, now)
    return remaining


def test_a_constant_rate_is_told_from_the_second_step_on() -> None:
    for batch in (2, 3, 50, 99):
        steps = [(step / 100, 5.0 + 2.0 * step) for step in range(batch)]
        assert after(steps).seconds == pytest.approx(2.0 * (101 - batch))


def test_a_new_speed_is_what_counts_after_a_while_and_a_single_slow_step_is_forgotten() -> None:
    faster = ((step * 1e-4, min(step, 300) * 10.0 + max(step - 300, 0)) for step in range(2301))
    assert after(faster).seconds == pytest.approx(1e4 - 2300, rel=0.01)
    steady, disturbed = (after((at / 1000, at + late * (at >= 100)) for at in range(400)) for late in (0.0, 60.0))
    assert disturbed.seconds == pytest.approx(steady.seconds, rel=0.01)


def test_evaluations_are_expected_to_go_on_and_a_resumed_run_goes_by_its_own_time() -> None:
    remaining, now = RemainingTime(), 0.0
    for batch in range(1, 501):
        now += 1.0
        remaining.advance(batch / 1000, now)
        if batch % 100 == 0:
            now += 30.0
            remaining.pause(now)
    # 500 steps, and five more evaluations; the first step is where it began to count.
    assert remaining.seconds == pytest.approx(500 + 5 * 30, rel=0.01)
    assert after([(0.5, 1000.0), (0.51, 1003.0)]).seconds == pytest.approx(49 * 3.0)
    assert after([(0.3, 0.0), (0.3, 9.0)]).seconds is None
    assert after([(0.3, 0.0), (0.3, 9.0), (1.0, 10.0)]).seconds == 0.0


def test_numbers_and_times_are_short() -> None:
    numbers = {0: "0", 950: "950", 9500: "9,500", 10_000: "10k", 95_432: "95.4k", 1_240_000: "1.24M", 2.5: "2.50"}
    assert {number: short_number(number) for number in numbers} == numbers
    times = {None: "?", 62: "01:02", 3662: "1:01:02", float("inf"): "?", float("nan"): "?"}
    assert [duration_text(seconds) for seconds in times] == list(times.values())
    done = {"epochs": 0.5, "samples": 500, "tokens": 90_000, "steps": 7}
    assert clock_text(done, {"epochs": 2, "tokens": 100_000}) == "90k/100k tokens"  # the budget that is furthest
    assert clock_text(done, {"epochs": 2}) == "0.50/2 epochs"
    assert clock_text(done, {}) == "500 samples"


@pytest.mark.parametrize(
    ("coverage", "text"),
    [
        ([0.5, np.nan], "coverage a 50% b 20 rows"),
        ([0.0, 0.25, 0.5, 1.0], "coverage a 0% b 25% c 50% d 100%"),
        ([0.5, np.nan, 0.75, 0.5, 0.5], "coverage a 50% … c 75%"),
        ([np.nan] * 5, "150 rows"),
    ],
)
def test_of_few_streams_all_are_named_and_of_many_the_least_and_the_most(coverage: list[float], text: str) -> None:
    names, seen = "abcde"[: len(coverage)], np.array([10, 20, 30, 40, 50])[: len(coverage)]
    mixing: Any = SimpleNamespace(names=names, coverage=dict(zip(names, coverage, strict=True)), seen=seen)
    assert coverage_text(mixing) == text
