"""Bounds of mixtures: what is drawn and found keeps them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mixer.tools.analysis.fit import Constraints, fit_mixture
from tests.refusals import refused

STREAMS = ["a", "b", "c", "d"]


def divergence(mixture: np.ndarray, prior: np.ndarray) -> float:
    used = mixture > 0
    return float((mixture[used] * np.log(mixture[used] / prior[used])).sum())


@settings(max_examples=8)
@given(st.integers(0, 1000), st.floats(0.0, 0.2), st.floats(0.5, 0.9), st.floats(0.05, 1.0))
def test_mixtures_that_are_drawn_keep_all_bounds(seed: int, least: float, most: float, nats: float) -> None:
    prior = {"a": 0.4, "b": 0.3, "c": 0.2, "d": 0.1}
    bounds = Constraints(prior=prior, least={"d": least}, most={"a": most}, divergence=nats)
    region = bounds.of(STREAMS)
    drawn = region.draw(50, np.random.default_rng(seed))
    drawn = np.concatenate([drawn, region.near(drawn, 1.0, np.random.default_rng(seed))])
    assert drawn.sum(axis=1) == pytest.approx(1.0)
    assert drawn[:, 3].min() >= least - 1e-9
    assert drawn[:, 0].max() <= most + 1e-9
    assert max(divergence(mixture, region.prior) for mixture in drawn) <= nats + 1e-6
    assert region.nearest(region.groups_of(drawn)) == pytest.approx(drawn, abs=1e-6)


def test_passes_bound_shares_by_size_and_length() -> None:
    # Of 1,000 samples stream d has 20: in at most 4 passes it gives 80 of them, a share of 0.08.
    bounds = Constraints(sizes={"a": 1000.0, "d": 20.0}, budget=1000.0, passes=4.0)
    drawn = bounds.of(STREAMS).draw(200, np.random.default_rng(0))
    assert drawn[:, 3].max() == pytest.approx(0.08)
    assert drawn[:, 0].max() > 0.5


def test_groups_keep_their_inner_weights() -> None:
    drawn = Constraints(groups={"old": {"a": 3.0, "b": 1.0}}).of(STREAMS).draw(50, np.random.default_rng(0))
    assert drawn[:, 0] == pytest.approx(3 * drawn[:, 1])
    assert np.ptp(drawn[:, 2]) > 0.1


def test_the_best_mixture_keeps_bounds_on_shares_and_other_losses() -> None:
    # L = (1 − a)² is least at a = 1; the other loss a² may be 0.25 at most: a = 0.5.
    first = np.linspace(0.05, 0.95, 10)
    mixtures, losses = np.stack([first, 1 - first], axis=1), np.stack([(1 - first) ** 2, first**2], axis=1)
    fit = {"objective": "x=1", "streams": ["a", "b"], "loss_names": ["x", "y"]}
    fitted = fit_mixture(mixtures, losses, **fit, constraints=Constraints(bounds={"y": 0.25}))
    assert fitted.shares == pytest.approx([0.5, 0.5], abs=0.01)
    fitted = fit_mixture(mixtures, losses, **fit, constraints=Constraints(most={"a": 0.7}))
    assert fitted.shares == pytest.approx([0.7, 0.3], abs=1e-3)
    with refused("bounds"):
        fit_mixture(mixtures, losses, **fit, constraints=Constraints(bounds={"y": -1.0}))


@pytest.mark.parametrize(
    ("name", "value", "option"),
    [
        ("least", {"a": 0.6, "b": 0.6}, "least"),
        ("least", {"z": 0.1}, "least"),
        *(("least", {"a": own}, "least.a") for own in (-0.1, True)),
        ("most", dict.fromkeys(STREAMS, 0.2), "most"),
        ("divergence", -1.0, "divergence"),
        ("bounds", {"x": np.nan}, "bounds.x"),
        ("passes", 4.0, "passes"),
        ("prior", {"a": -1.0, "b": 2.0}, "prior.a"),
        *(("prior", own, "prior") for own in (dict.fromkeys(STREAMS, 0.0), {"a": 1.0}, [1.0, 2.0])),
        *(("groups", own, "groups") for own in (["a", "b"], {"one": {"a": 1}, "two": {"a": 1}})),
        *(("groups", {"old": own}, "groups.old") for own in (["a"], {})),
        *(("groups", {"old": {"a": own}}, "groups.old.a") for own in ("x", np.nan, True)),
    ],
)
def test_bounds_that_cannot_be_kept_or_are_out_of_their_range_are_refused(name: str, value: Any, option: str) -> None:
    with refused(option):
        Constraints(**{name: value}).of(STREAMS)


def test_a_number_of_passes_is_above_0() -> None:
    with refused("passes"):
        Constraints(sizes={"a": 1.0}, budget=1.0, passes=0.0)
