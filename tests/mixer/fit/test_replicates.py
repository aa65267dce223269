"""Several runs of each mixture, as of other seeds."""

from collections.abc import Callable

import numpy as np
import pytest

from mixer.fit import laws


def law(mixtures: np.ndarray) -> np.ndarray:
    return (mixtures + 0.1) ** -0.5


def error(seed: int) -> float:
    """How far a fit to six mixtures, four runs of each, is off where no run was."""
    generator = np.random.default_rng(seed)
    mixtures = np.repeat(generator.dirichlet(np.ones(3), 6), 4, axis=0)
    predict = laws.fit_quadratic(mixtures, law(mixtures) + 0.1 * generator.standard_normal(mixtures.shape))
    points = generator.dirichlet(np.ones(3), 300)
    return float(np.sqrt(np.mean((predict(points) - law(points)) ** 2)))


def test_penalties_are_chosen_by_what_other_mixtures_say(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = np.mean([error(seed) for seed in range(60)])
    monkeypatch.setattr(laws, "group_runs", lambda mixtures: np.arange(len(mixtures)))  # one run at a time
    single = np.mean([error(seed) for seed in range(60)])
    assert whole < 0.5 * single
    assert whole < 0.5


@pytest.mark.parametrize("fit", [laws.fit_linear, laws.fit_quadratic])
def test_runs_count_as_often_as_there_are(fit: Callable[..., laws.Predictor]) -> None:
    # Three runs of a mixture say the same as three runs of their mean loss, though their spread is another.
    mixtures = np.random.default_rng(0).dirichlet(np.ones(3), 8)[[0, 0, 0, 1, 2, 3, 4, 5, 6, 7]]
    losses = law(mixtures)
    spread = np.zeros_like(losses)
    spread[:3] = [[0.2], [-0.3], [0.1]]
    points = np.random.default_rng(1).dirichlet(np.ones(3), 20)
    assert fit(mixtures, losses + spread)(points) == pytest.approx(fit(mixtures, losses)(points), abs=1e-9)
