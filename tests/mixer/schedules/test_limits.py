import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from mixer.schedules import Constant, Limits
from mixer.schedules.limits import LARGEST
from tests.refusals import refused


@st.composite
def limits(draw: st.DrawFn) -> Limits:
    granularity = draw(st.sampled_from([1, 2, 3, 8, 48]))
    minimum = draw(st.none() | st.integers(1, 500))
    least = -(-(minimum or 1) // granularity) * granularity
    maximum = draw(st.none() | st.integers(least, least + 2_000))
    growth = draw(st.none() | st.sampled_from([1.0001, 1.1, 1.5, 2.0, 10.0]))
    return Limits(minimum, maximum, granularity, growth)


asked_sizes = st.floats(-1e308, 1e308) | st.floats(0.0, 4_000.0) | st.sampled_from([math.inf, -math.inf, 5e-324])
previous_sizes = st.integers(1, 5_000)


@given(limits=limits(), asked=asked_sizes, other=asked_sizes, previous=previous_sizes)
def test_a_size_lies_within_the_bounds_and_rules_on(limits: Limits, asked: float, other: float, previous: int) -> None:
    size = limits.apply(asked, previous)
    assert type(size) is int
    assert (limits.minimum or 1) <= size <= (limits.maximum or LARGEST)
    assert size % limits.granularity == 0
    assert limits.apply(size, size) == size
    clamped = limits.clamp(asked)
    assert math.isfinite(clamped)
    assert limits.clamp(clamped) == clamped
    less, more = sorted([asked, other])
    assert limits.apply(less, previous) <= limits.apply(more, previous)
    if limits.max_growth is not None:
        one_step = (previous // limits.granularity + 1) * limits.granularity
        assert size <= max(previous * limits.max_growth * (1 + 1e-9), one_step, limits.clamp(-math.inf))
    elif asked == clamped:
        assert abs(size - asked) <= limits.granularity / 2


@given(limits=limits().filter(lambda given: given.maximum and given.max_growth != 1.0001), previous=previous_sizes)
def test_the_maximum_is_reached_in_the_end(limits: Limits, previous: int) -> None:
    size, last = previous, 0
    while size != last:
        size, last = limits.apply(math.inf, size), size
    assert size == (limits.maximum or 0) // limits.granularity * limits.granularity


@pytest.mark.parametrize(
    ("limits", "asked", "previous", "expected"),
    [
        (Limits(), 8.5, 8, 9),
        (Limits(), 8.49, 8, 8),
        (Limits(), 0.2, 8, 1),
        *[(Limits(granularity=4), asked, 8, expected) for asked, expected in ((9.9, 8), (10.0, 12))],
        (Limits(minimum=5, granularity=4), 1.0, 8, 8),
        (Limits(maximum=15, granularity=4), 100.0, 8, 12),
        (Limits(max_growth=1.15), 900.0, 100, 115),
        (Limits(max_growth=1.1), 100.0, 4, 5),
        (Limits(max_growth=1.1, granularity=8), 100.0, 16, 24),
        (Limits(minimum=64, max_growth=2.0), 100.0, 8, 64),
        (Limits(max_growth=2.0), 1.0, 64, 1),
    ],
)
def test_by_hand(limits: Limits, asked: float, previous: int, expected: int) -> None:
    assert limits.apply(asked, previous) == expected


def test_the_least_is_one_sample_a_rank_unless_it_is_given() -> None:
    assert Limits(maximum=9, granularity=2, max_growth=2.0).with_least(4) == Limits(4, 9, 2, 2.0)
    assert Limits(minimum=2).with_least(4) == Limits(minimum=2)


@pytest.mark.parametrize(
    ("arguments", "error", "option"),
    [
        ({"minimum": 9, "maximum": 8}, ValueError, "minimum"),
        ({"minimum": 9, "maximum": 15, "granularity": 8}, ValueError, "granularity"),
        ({"minimum": 0}, ValueError, "minimum"),
        ({"granularity": 2.0}, TypeError, "granularity"),
        ({"maximum": True}, TypeError, "maximum"),
        ({"max_growth": 1.0}, ValueError, "max_growth"),
    ],
)
def test_bounds_that_contradict_each_other(arguments: dict[str, Any], error: type[Exception], option: str) -> None:
    for make in (Limits, Constant):
        with refused(option, kind=error):
            make(**arguments)


@pytest.mark.parametrize(("initial", "error"), [(4, ValueError), (10, ValueError), (0, ValueError), (16.0, TypeError)])
def test_a_first_size_outside_the_bounds_is_refused(initial: Any, error: type[Exception]) -> None:
    with refused("initial", kind=error):
        Limits(8, 32, 4).check_initial(initial)
    for within in (None, 8, 12, 32):
        Limits(8, 32, 4).check_initial(within)
