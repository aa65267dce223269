"""The clock once it counts data: a batch size that changes, or a budget in samples or tokens."""

import copy
import itertools
import json
import math
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from mixer.mixture.clock import Budget, Clock

SIZES = st.lists(st.integers(1, 13), min_size=1, max_size=30)
BUDGETS = st.builds(
    Budget,
    epochs=st.none() | st.floats(0.2, 4),
    samples=st.none() | st.integers(1, 80),
    tokens=st.none() | st.integers(1, 800),
    steps=st.integers(1, 60),
)


def data_clock(epoch_size: int = 10, batch_size: int = 4, drop: bool = False, **budget: float) -> Clock:
    return Clock(batch_size, epoch_size, Budget(**(budget or {"epochs": 3})), int(drop), is_constant=False)


def run(clock: Clock, sizes: list[int], tokens_per_sample: int = 7) -> list[int]:
    """Runs to the end of the budget on sizes that come again and again."""
    totals = []
    while clock.progress < 1.0:
        clock.resize(sizes[clock.step % len(sizes)])
        if clock.drop_rest() and clock.progress >= 1.0:
            break
        totals.append(clock.next_total())
        clock.tick(totals[-1], totals[-1] * tokens_per_sample)
        clock.drop_rest()
    return totals


class TestEpochs:
    @given(SIZES, st.integers(1, 40), st.integers(1, 4))
    def test_the_steps_of_each_epoch_sum_to_it(self, sizes: list[int], epoch_size: int, num_epochs: int) -> None:
        clock = data_clock(epoch_size, epochs=num_epochs)
        totals = iter(run(clock, sizes))
        for _ in range(num_epochs):
            left = epoch_size
            while left:
                total = next(totals)
                assert 1 <= total <= left
                left -= total
        assert next(totals, None) is None
        assert clock.num_epochs_done == clock.epoch == num_epochs

    @given(SIZES, st.integers(13, 40))
    def test_where_the_rest_is_dropped_every_batch_is_whole(self, sizes: list[int], epoch_size: int) -> None:
        clock = data_clock(epoch_size, drop=True)
        totals = run(clock, sizes)
        assert all(total == sizes[step % len(sizes)] for step, total in enumerate(totals))
        assert clock.num_epochs_done == 3
        assert clock.dropped_samples < max(sizes)

    @pytest.mark.parametrize(
        ("clock", "size", "expected"),
        [
            (data_clock(10, 4, drop=True, epochs=2), 64, [10, 10]),
            (data_clock(100, 8, samples=30), 8, [8, 8, 8, 6]),
            (data_clock(10, 4, epochs=1.5), 4, [4, 4, 2, 4, 1]),
        ],
    )
    def test_epochs_and_budgets_are_met_to_the_sample(self, clock: Clock, size: int, expected: list[int]) -> None:
        assert run(copy.deepcopy(clock), [size]) == expected


class TestSamplesAreIntegers:
    def test_a_run_of_any_share_of_an_epoch_ends_to_the_sample(self) -> None:
        for numerator, denominator in itertools.product(range(1, 25), (1, 3, 6, 7, 10, 49)):
            for epoch_size, batch_size in itertools.product((10, 49, 300), (16, 64)):
                clock = data_clock(epoch_size, batch_size, epochs=numerator / denominator)
                exact = math.ceil(Fraction(numerator, denominator) * epoch_size)
                whole, rest = divmod(exact, epoch_size)
                assert clock.max_steps == whole * -(-epoch_size // batch_size) + -(-rest // batch_size)
                totals = run(clock, [batch_size])
                assert (sum(totals), len(totals)) == (exact, clock.planned_steps), (numerator, denominator, epoch_size)

    @pytest.mark.parametrize("limit", [2**53 + 1, 2**60 + 1, 10**18])
    def test_the_last_sample_of_a_long_run_is_trained(self, limit: int) -> None:
        clock = Clock(2**20, 2**62, Budget(samples=limit), is_constant=False)
        clock.tick(limit - 1)
        assert (clock.progress < 1.0, clock.next_total(), clock.max_steps) == (True, 1, 2)
        clock.tick()
        assert (clock.progress, clock.max_steps) == (1.0, 2)

    def test_tokens_per_sample_that_are_no_whole_number_are_exact(self) -> None:
        for tokens, samples in itertools.product(range(1, 40), (3, 7, 11)):
            clock = Clock(1, 10**6, Budget(tokens=10 * tokens), tokens_per_sample=tokens / samples, is_constant=False)
            assert clock.planned_steps == 10 * samples
            clock.tick(samples, tokens)
            assert clock.max_steps == 1 + 9 * samples


class TestBudgets:
    @given(BUDGETS, SIZES)
    def test_the_run_ends_with_the_first_of_them(self, budget: Budget, sizes: list[int]) -> None:
        clock = Clock(3, 10, budget, is_constant=False)
        totals = run(clock, sizes)
        ends = {
            "steps": clock.step >= (budget.steps or math.inf),
            "samples": clock.num_samples >= (budget.samples or math.inf),
            "tokens": clock.num_tokens >= (budget.tokens or math.inf),
            "epochs": clock.epoch >= (budget.epochs or math.inf),
        }
        assert any(ends.values())
        before = sum(totals[:-1])
        assert before < (budget.samples or math.inf)
        assert before * 7 < (budget.tokens or math.inf)
        assert before < (budget.epochs or math.inf) * 10
        assert clock.step <= (budget.steps or math.inf)
        assert sum(totals) <= (budget.samples or math.inf)

    @given(BUDGETS, st.integers(1, 13))
    def test_the_estimate_of_the_length_is_right_while_the_size_stays(self, budget: Budget, size: int) -> None:
        clock = Clock(size, 10, budget, tokens_per_sample=7, is_constant=False)
        estimates = [clock.max_steps]
        while clock.progress < 1.0:
            clock.tick(None, 7 * clock.next_total())
            estimates.append(clock.max_steps)
        if budget.tokens is None:
            assert set(estimates) == {clock.step}
        else:  # the rest of an epoch has fewer tokens than a batch
            assert all(step < estimate for step, estimate in enumerate(estimates[:-1]))
            assert estimates[-1] == clock.step

    @given(BUDGETS, SIZES)
    def test_progress_rises_to_one_and_the_end_is_never_seen_too_early(self, budget: Budget, sizes: list[int]) -> None:
        clock, seen = Clock(3, 10, budget, is_constant=False), [0.0]
        while clock.progress < 1.0:
            assert clock.max_steps > clock.step
            clock.resize(sizes[clock.step % len(sizes)])
            assert clock.max_steps > clock.step
            clock.tick(None, 20)
            seen.append(clock.progress)
        assert seen == sorted(seen)
        assert clock.max_steps == clock.step


class TestChangeOfMind:
    """A run of constant size, whose size is then set by hand."""

    @given(st.integers(1, 12), st.integers(1, 9), st.integers(1, 9), st.booleans())
    def test_nothing_is_lost_and_progress_does_not_fall(self, step: int, before: int, after: int, keeps: bool) -> None:
        clock = Clock(before, 10, Budget(epochs=4), drop_unit=0 if keeps else before)
        for _ in range(min(step, clock.max_steps - 1)):
            clock.tick()
        progress, epoch = clock.progress, clock.num_epochs_done
        clock.resize(after)
        assert clock.progress >= progress
        assert clock.num_epochs_done == epoch
        while clock.progress < 1.0:
            clock.drop_rest()
            clock.tick()
            clock.drop_rest()
        assert clock.num_epochs_done == 4


@given(SIZES, st.integers(0, 12))
def test_it_rises_from_nothing_to_the_planned_end(sizes: list[int], num_warmup_steps: int) -> None:
    clock = Clock(2, 10, Budget(epochs=3), num_warmup_steps=num_warmup_steps, is_constant=False)
    places = [clock.schedule_position]
    while clock.progress < 1.0:
        clock.resize(sizes[clock.step % len(sizes)])
        clock.tick()
        places.append(clock.schedule_position)
    assert places == sorted(places)
    assert places[0] == 0.0
    assert places[: num_warmup_steps + 1] == [float(step) for step in range(len(places))][: num_warmup_steps + 1]
    if len(places) > num_warmup_steps + 1:
        assert places[-1] == clock.planned_steps == 15


@given(BUDGETS, SIZES, st.integers(0, 20), st.booleans())
def test_it_goes_on_where_it_was(budget: Budget, sizes: list[int], step: int, drops: bool) -> None:
    def make() -> Clock:
        return Clock(3, 30, budget, int(drops), num_warmup_steps=4, is_constant=False)

    clock, resumed = make(), make()
    for _ in range(step):
        if clock.progress < 1.0:
            clock.resize(sizes[clock.step % len(sizes)])
            clock.drop_rest()
            clock.tick(None, 5)
    resumed.load_state_dict(json.loads(json.dumps(clock.state_dict())))
    assert resumed.schedule_position == clock.schedule_position
    assert resumed.state_dict() == clock.state_dict()
    assert run(resumed, sizes) == run(clock, sizes)
    assert resumed.state_dict() == clock.state_dict()
