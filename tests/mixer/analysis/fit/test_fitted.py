"""What is said of a fit."""

from typing import Any

import numpy as np
import pytest
from rich.console import Console

from mixer.analysis.fit import FittedMixture, fit_mixture
from mixer.analysis.fit.fitted import error_table, share_table, summary

LINE = np.linspace(0.1, 0.9, 9)
MIXTURES = np.stack([LINE, 1 - LINE], axis=1)
LOSSES = (1.0 - MIXTURES) ** 2


def fit(losses: np.ndarray, mixtures: np.ndarray = MIXTURES, objective: str = "average", **names: Any) -> FittedMixture:
    return fit_mixture(mixtures, losses, objective, regressor="exponential", **names)


@pytest.fixture(scope="module")
def fitted() -> FittedMixture:
    return fit_mixture(MIXTURES, LOSSES, streams=["math", "code"])


def test_noise_explains_nothing_nor_do_runs_left_out_in_the_wrong_order() -> None:
    noise = np.random.default_rng(1).standard_normal((9, 2))
    noisy = fit_mixture(MIXTURES, noise, regressor="gaussian-process")
    assert noisy.error >= noisy.constant_error
    assert "explains nothing" in noisy.warnings[0]
    # Each run without the others' help comes out where it was not, if a little nearer than their mean.
    mixtures = np.array([[0.1, 0.9], [0.367, 0.633], [0.633, 0.367], [0.9, 0.1]])
    wrong = fit(np.array([[2.07, 2.03], [2.27, 1.90], [1.84, 2.10], [2.10, 1.95]]), mixtures)
    assert wrong.error < wrong.constant_error
    assert wrong.rank_correlation == pytest.approx(-1.0)
    assert wrong.explains_nothing
    assert "the rank correlation of its predictions is -1.00" in wrong.warnings[0]


def test_a_gain_within_the_error_is_said() -> None:
    noise = 0.02 * np.random.default_rng(0).standard_normal((9, 2))
    kept = np.array([0, 1, 2, 6, 7, 8])  # without the runs next to the best, so that no run is of the mixture found
    clear, flat = (fit((scale * LOSSES + noise)[kept], MIXTURES[kept]) for scale in (1.0, 0.2))
    assert not clear.explains_nothing
    assert clear.gain > clear.error or "within the error" in clear.warnings[0]
    assert flat.gain <= flat.error
    assert any("explains nothing" in words or "within the error" in words for words in flat.warnings)


def test_what_few_runs_and_streams_without_any_cannot_tell_is_said() -> None:
    wide = np.column_stack([MIXTURES, np.zeros((9, 8))])
    fitted = fit((1.0 - wide) ** 2, wide)
    assert fitted.shares[2:].tolist() == [0.0] * 8
    assert any("9 runs cannot tell 10 streams apart" in warning for warning in fitted.warnings)
    assert any("No run trained on ['stream 3'," in warning for warning in fitted.warnings)


def test_an_edge_of_what_the_runs_cover_is_said_but_not_of_what_can_be() -> None:
    inner = fit(LOSSES, objective="math=1", streams=["math", "code"])
    assert inner.shares == pytest.approx([0.9, 0.1], abs=0.01)
    assert inner.at_edge == ["math", "code"]
    line = np.linspace(0.0, 1.0, 9)
    whole = np.stack([line, 1 - line], axis=1)
    everything = fit((1.0 - whole) ** 2, whole, "stream 1=1")
    assert everything.shares == pytest.approx([1.0, 0.0], abs=0.01)
    assert everything.at_edge == []


def test_tables_show_the_mixture_the_runs_and_the_errors(fitted: FittedMixture) -> None:
    assert fitted.same_runs == fitted.uniform_runs == [fitted.best_run] == [4]
    assert "The mixture is that of run 5 (0.2500)" in fitted.warnings[0]
    console = Console(width=120)
    with console.capture() as capture:
        console.print(share_table(fitted), error_table(fitted), *summary(fitted))
    printed = capture.get()
    for words in ("math", "0.100 … 0.900", "best run", "uniform run", "run 5", "(expected)", "(recorded)", "(chosen)"):
        assert words in printed
    assert f"{fitted.expected_loss:.4f} ± {fitted.error:.4f}" in printed
    assert f"runs left out is {fitted.rank_correlation:.2f}" in printed
    with console.capture() as capture:
        console.print(share_table(fit(LOSSES[[0, 1, 6, 8]], MIXTURES[[0, 1, 6, 8]])))
    assert "uniform run" not in capture.get()
