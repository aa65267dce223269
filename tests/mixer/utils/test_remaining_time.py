"""The time that a run still takes."""

import pytest

from mixer.ledger.progress.line import RemainingTime
from mixer.utils.text import clock_text, duration_text, short_number


def test_a_constant_rate_is_told_from_the_second_step_on() -> None:
    remaining = RemainingTime()
    assert remaining.seconds is None
    for batch in range(100):
        remaining.advance(batch / 100, 5.0 + 2.0 * batch)
        if batch:
            assert remaining.seconds == pytest.approx(2.0 * (100 - batch))


def test_a_batch_that_doubles_changes_nothing_where_a_sample_takes_as_long() -> None:
    remaining = RemainingTime()
    samples = now = 0
    while samples < 1000:
        remaining.advance(samples / 1000, float(now))
        if now:
            assert remaining.seconds == pytest.approx(0.5 * (1000 - samples))
        batch = 10 if samples < 300 else 20
        samples, now = samples + batch, now + batch // 2


def test_a_new_speed_is_what_counts_after_a_while() -> None:
    remaining = RemainingTime()
    progress, now = 0.0, 0.0
    for seconds in [10.0] * 300 + [1.0] * 2000:  # so long a step of the same share takes
        remaining.advance(progress, now)
        progress, now = progress + 1e-4, now + seconds
    assert remaining.seconds == pytest.approx((1.0 - progress + 1e-4) * 1e4, rel=0.01)


def test_a_single_slow_step_is_forgotten() -> None:
    steady, disturbed = RemainingTime(), RemainingTime()
    for batch in range(400):
        steady.advance(batch / 1000, float(batch))
        disturbed.advance(batch / 1000, batch + (60.0 if batch >= 100 else 0.0))
    assert disturbed.seconds == pytest.approx(steady.seconds, rel=0.01)


def test_evaluations_are_expected_to_go_on() -> None:
    remaining, now = RemainingTime(), 0.0
    for batch in range(1, 501):
        now += 1.0
        remaining.advance(batch / 1000, now)
        if batch % 100 == 0:
            now += 30.0
            remaining.pause(now)
    # 500 steps, and five more evaluations; the first step is where it began to count.
    assert remaining.seconds == pytest.approx(500 + 5 * 30, rel=0.01)


def test_a_pause_before_the_first_step_says_nothing() -> None:
    remaining = RemainingTime()
    remaining.pause(100.0)
    remaining.advance(0.0, 200.0)
    remaining.pause(300.0)
    remaining.advance(0.1, 310.0)
    assert remaining.seconds == pytest.approx(90.0)


def test_a_resumed_run_counts_its_own_time_alone() -> None:
    remaining = RemainingTime()
    remaining.advance(0.5, 1000.0)
    remaining.advance(0.51, 1003.0)
    assert remaining.seconds == pytest.approx(49 * 3.0)


def test_the_end_and_standing_still() -> None:
    remaining = RemainingTime()
    remaining.advance(0.3, 0.0)
    remaining.advance(0.3, 9.0)
    assert remaining.seconds is None
    remaining.advance(1.0, 10.0)
    assert remaining.seconds == 0.0


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0"), (950, "950"), (9500, "9,500"), (10_000, "10k"), (95_432, "95.4k"), (1_240_000, "1.24M"), (2.5, "2.50")],
)
def test_numbers_are_short(number: float, text: str) -> None:
    assert short_number(number) == text


def test_the_budget_that_is_furthest_is_told() -> None:
    done = {"epochs": 0.5, "samples": 500, "tokens": 90_000, "steps": 7}
    assert clock_text(done, {"epochs": 2, "tokens": 100_000}) == "90k/100k tokens"
    assert clock_text(done, {"epochs": 2}) == "0.50/2 epochs"
    assert clock_text(done, {}) == "500 samples"
    assert (duration_text(None), duration_text(62), duration_text(3662)) == ("?", "01:02", "1:01:02")
    assert (duration_text(float("inf")), duration_text(float("nan"))) == ("?", "?")
