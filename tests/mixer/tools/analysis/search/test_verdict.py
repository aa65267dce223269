"""What short runs say: each question is asked only if those before it leave it open."""

from dataclasses import replace

import pytest

from mixer.tools.analysis.search.verdict import Evidence, answer, gain_of, learned_in, noise_of, reasons

GAIN = Evidence(gain=0.103, noise=0.001, learned=0.4, confirmed_gain=0.08)


@pytest.mark.parametrize(
    ("changes", "verdict"),
    [
        ({}, "gain"),
        ({"learned": None}, "gain"),
        ({"confirmed_gain": None}, "not confirmed"),
        ({"confirmed_gain": -0.02}, "not confirmed"),
        ({"confirmed_gain": 0.0}, "not confirmed"),
        ({"broken": ["old"]}, "breaks a bound"),
        ({"noise": 0.04}, "not clear"),  # three times the noise is more than the gain
        ({"gain": 0.003, "noise": 0.01}, "not clear"),  # which could hide half a per cent
        ({"gain": 0.003}, "nothing to gain"),
        ({"gain": -0.2, "noise": 0.01}, "nothing to gain"),  # worse than any noise
        ({"is_explained": False}, "not explained"),  # whatever the gain
        ({"is_explained": False, "gain": -0.2}, "not explained"),
        ({"learned": 0.04}, "too short"),  # whatever the fit and the gain
        ({"learned": -1.0, "is_explained": False, "broken": ["old"]}, "too short"),
    ],
)
def test_the_answer_follows_the_order_of_the_questions(changes, verdict) -> None:
    assert replace(GAIN, **changes).verdict == verdict


@pytest.mark.parametrize("verdict", ["too short", "not explained", "not clear", "breaks a bound"])
def test_no_answer_but_a_gain_advises_a_change(verdict: str) -> None:
    changes = {"learned": 0.0}, {"is_explained": False}, {"noise": 0.1}, {"broken": ["old"]}
    evidence = next(own for own in (replace(GAIN, **change) for change in changes) if own.verdict == verdict)
    assert not answer(evidence, "mixer search x.yaml").startswith("There is something to gain")


def test_the_reasons_name_both_lengths_and_both_gains() -> None:
    first, second = reasons(replace(GAIN, confirmed_gain=-0.05), 24, 48)
    assert ("10.3% better" in first, "24 steps" in first, "0.1%" in first) == (True, True, True)
    assert ("5.0% worse" in second, "48 steps" in second) == (True, True)
    assert "further seed" in reasons(GAIN, 24, 24)[-1]


@pytest.mark.parametrize(
    ("near", "other_seed", "noise"),
    [
        (0.002, 0.06, 0.0042),  # one difference of a pair counts 2.1 times, whatever seeds do to both of it
        (0.002, 0.003, 0.003),  # but where seeds differ by less
        (0.002, 0.001, 0.002),
        (0.0, 0.06, 0.06),  # the same samples in both show no noise
    ],
)
def test_the_noise_is_that_of_a_pair_on_one_seed(near: float, other_seed: float, noise: float) -> None:
    for sign in (1.0, -1.0):
        assert noise_of(1.0, 1.0 + sign * near, 1.0 - sign * other_seed) == pytest.approx(noise)


def test_gains_and_what_was_learned_are_relative() -> None:
    assert gain_of(2.0, 1.5) == 0.25
    assert gain_of(-0.5, -0.6) == pytest.approx(0.2)  # a metric of which more is better, with its sign turned
    assert gain_of(0.0, 0.1) == -0.1
    assert learned_in(4.0, 1.0) == 0.75
    assert learned_in(float("inf"), 1.0) is None
