"""What is said of a fit."""

from typing import Any

import numpy as np
import pytest

from mixer.tools.analysis.fit import FittedMixture, fit_mixture

LINE = np.linspace(0.1, 0.9, 9)
MIXTURES = np.stack([LINE, 1 - LINE], axis=1)
LOSSES = (1.0 - MIXTURES) ** 2


def fit(losses: np.ndarray, mixtures: np.ndarray = MIXTURES, objective: str = "average", **names: Any) -> FittedMixture:
    return fit_mixture(mixtures, losses, objective, **names)


@pytest.fixture(scope="module")
def fitted() -> FittedMixture:
    return fit_mixture(MIXTURES, LOSSES, streams=["math", "code"])


def test_noise_explains_nothing() -> None:
    noisy = fit_mixture(MIXTURES, np.random.default_rng(1).standard_normal((9, 2)))
    assert noisy.explains_nothing
    assert "explains nothing" in noisy.warnings[0]
    assert "explains nothing" in noisy.sentences()[0]
    assert not any("certainty" in sentence for sentence in noisy.sentences())  # no interval of a failed fit


def test_the_order_of_three_mixtures_tells_nothing_and_far_from_runs_no_loss_explodes() -> None:
    for seed in (0, 5, 35, 107):
        random = np.random.default_rng(seed)
        mixtures = random.dirichlet(np.ones(2), 3)
        three = fit(2.0 + (1.0 - mixtures) ** 2 + 0.01 * random.standard_normal((3, 2)), mixtures)
        assert not any(f"is {word}" in three.trust for word in ("reliable", "good", "rough"))
        assert three.error < 10.0 * np.ptp(three.seen)
    wrong = fit(np.random.default_rng(1).standard_normal((9, 2)))
    assert "is unreliable" in wrong.trust


def test_what_few_runs_and_streams_without_any_cannot_tell_is_said() -> None:
    wide = np.column_stack([MIXTURES, np.zeros((9, 8))])
    fitted = fit((1.0 - wide) ** 2, wide)
    assert fitted.shares[2:].tolist() == [0.0] * 8
    assert any("9 mixtures cannot tell 10 streams apart" in warning for warning in fitted.warnings)
    assert any("No run trained on stream 3," in warning for warning in fitted.warnings)


def test_an_edge_of_what_the_runs_cover_is_said_but_not_of_what_can_be() -> None:
    inner = fit(LOSSES, objective="math=1", streams=["math", "code"])
    assert inner.shares == pytest.approx([0.9, 0.1], abs=0.01)
    assert inner.at_edge == ["math", "code"]
    line = np.linspace(0.0, 1.0, 9)
    whole = np.stack([line, 1 - line], axis=1)
    everything = fit((1.0 - whole) ** 2, whole, "stream 1=1")
    assert everything.shares == pytest.approx([1.0, 0.0], abs=0.01)
    assert everything.at_edge == []


def test_tables_show_the_mixture_the_runs_and_what_they_rest_on(fitted: FittedMixture) -> None:
    assert fitted.best_run == "run 5"
    assert "The mixture is that of run 5 (0.2500)" in fitted.warnings[0]
    cells = {column.header: [*column.cells] for column in fitted.table().columns}
    assert (cells["stream"], cells["least of the runs"], cells["most"]) == (["math", "code"], ["0.1"] * 2, ["0.9"] * 2)
    assert fitted.document()["weights"] == fitted.weights
