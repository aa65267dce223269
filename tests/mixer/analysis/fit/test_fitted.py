"""What is said of a fit."""

import numpy as np
import pytest
from rich.console import Console

from mixer.analysis.fit import FittedMixture, fit_mixture
from mixer.analysis.fit.fitted import error_table, share_table, summary
from tests.mixer.analysis.fit.laws import own_squares

LINE = np.linspace(0.1, 0.9, 9)
MIXTURES = np.stack([LINE, 1 - LINE], axis=1)


def fit(losses: np.ndarray, **options: object) -> FittedMixture:
    return fit_mixture(MIXTURES, losses, streams=["math", "code"], **options)


def test_noise_explains_nothing() -> None:
    fitted = fit(np.random.default_rng(1).standard_normal((9, 2)), regressor="gaussian-process")
    assert fitted.error >= fitted.constant_error
    assert "explains nothing" in fitted.warnings[0]


def test_runs_left_out_in_the_wrong_order_are_not_explained() -> None:
    # Each run without the others' help comes out where it was not, if a little nearer than their mean.
    mixtures = np.array([[0.1, 0.9], [0.367, 0.633], [0.633, 0.367], [0.9, 0.1]])
    losses = np.array([[2.07, 2.03], [2.27, 1.90], [1.84, 2.10], [2.10, 1.95]])
    fitted = fit_mixture(mixtures, losses, regressor="exponential")
    assert fitted.error < fitted.constant_error
    assert fitted.rank_correlation == pytest.approx(-1.0)
    assert fitted.explains_nothing
    assert "the rank correlation of its predictions is -1.00" in fitted.warnings[0]


def test_a_gain_within_the_error_is_said() -> None:
    noise = 0.02 * np.random.default_rng(0).standard_normal((9, 2))
    # Without the runs next to the best, so that no run is of the mixture found.
    kept = np.array([0, 1, 2, 6, 7, 8])
    fitted = fit_mixture(MIXTURES[kept], (own_squares(MIXTURES) + noise)[kept], regressor="exponential")
    assert not fitted.explains_nothing
    assert fitted.gain > fitted.error or "within the error" in fitted.warnings[0]
    flat = fit_mixture(MIXTURES[kept], (0.2 * own_squares(MIXTURES) + noise)[kept], regressor="exponential")
    assert flat.gain <= flat.error
    assert any("explains nothing" in words or "within the error" in words for words in flat.warnings)


def test_a_mixture_that_a_run_had_already_is_said_to_be_its() -> None:
    fitted = fit(own_squares(MIXTURES) + 0.01)
    assert fitted.same_runs == fitted.uniform_runs == [4]
    assert fitted.best_run == 4
    assert "The mixture is that of run 5 (0.2600)" in fitted.warnings[0]


def test_an_edge_of_what_the_runs_cover_is_said_but_not_of_what_can_be() -> None:
    fitted = fit(own_squares(MIXTURES), objective="math=1")
    assert fitted.shares == pytest.approx([0.9, 0.1], abs=0.01)
    assert fitted.at_edge == ["math", "code"]
    line = np.linspace(0.0, 1.0, 9)
    whole = np.stack([line, 1 - line], axis=1)
    everything = fit_mixture(whole, own_squares(whole), "stream 1=1")
    assert everything.shares == pytest.approx([1.0, 0.0], abs=0.01)
    assert everything.at_edge == []


def test_the_fit_predicts_any_mixture() -> None:
    fitted = fit(own_squares(MIXTURES))
    # ((1 − 0.3)² + (1 − 0.7)²) / 2
    assert fitted.predict(np.array([[0.3, 0.7]]))[0] == pytest.approx(0.29, abs=1e-3)
    assert fitted.predict(fitted.shares[None])[0] == pytest.approx(fitted.expected_loss)


def test_tables_show_the_mixture_the_runs_and_the_errors() -> None:
    fitted = fit(own_squares(MIXTURES))
    console = Console(width=120)
    with console.capture() as capture:
        console.print(share_table(fitted), error_table(fitted), *summary(fitted))
    printed = capture.get()
    for words in ("math", "0.100 … 0.900", "best run", "uniform run", "run 5", "(expected)", "(recorded)", "(chosen)"):
        assert words in printed
    assert f"{fitted.expected_loss:.4f} ± {fitted.error:.4f}" in printed
    assert f"runs left out is {fitted.rank_correlation:.2f}" in printed
    none = fit_mixture(MIXTURES[[0, 1, 6, 8]], own_squares(MIXTURES[[0, 1, 6, 8]]))
    with console.capture() as capture:
        console.print(share_table(none))
    assert "uniform run" not in capture.get()
