"""Weights by name and as given: golden values, what they are scaled to, and what is refused."""

import random
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from mixer import GradientAggregation
from mixer.gradients.conflict import NAMES, Aggregator
from mixer.utils.errors import ErrorFacts, InvalidTypeError, InvalidValueError
from tests.mixer.aggregated import at_odds, make_trainer

torchjd = pytest.importorskip("torchjd.aggregation")

KEY = (1, 2, 3)
# Two gradients at an angle of 135 degrees: g = (1, 0) and h = (-1, 1).
OPPOSED = np.array([[1.0, -1.0], [-1.0, 2.0]])


def weigh(name: Any, gramian: np.ndarray) -> np.ndarray:
    return Aggregator(torchjd.UPGrad() if name == "upgrad" else name, len(gramian)).weigh(gramian, KEY)


BY_HAND: dict[str, tuple[list[float], float]] = {
    # g - <g,h>/|h|^2 h = g + h/2; h - <h,g>/|g|^2 g = h + g. Their sum is 2 g + 3/2 h.
    "pcgrad": ([2.0, 1.5], 1e-15),
    # |a g + (1-a) h|^2 is least at a = (|h|^2 - <g,h>)/|g-h|^2 = 3/5. Twice that, for two streams.
    "mgda": ([1.2, 0.8], 1e-12),
    # The dual cone is {v: v_1 >= 0, v_2 >= v_1}. The half of g projected onto it lies on v_1 = v_2: (1/4, 1/4), or
    # g/2 + h/4; that of h lies on v_1 = 0: it is (0, 1/2), or g/2 + h/2. Together g + 3/4 h, twice for two streams:
    # 2 g + 3/2 h. torchjd regularises by 1e-4.
    "upgrad": ([2.0, 1.5], 1e-3),
}


def test_weights_of_two_by_hand() -> None:
    for name, (expected, tolerance) in BY_HAND.items():
        np.testing.assert_allclose(weigh(name, OPPOSED), expected, atol=tolerance)
    # Of g = (1, 0), h = (0, 1): the mean and the worst improvement are symmetric: both weights are (1 + c)/2, scaled by
    # 2/(1 + c). With c = 0 it is the mean of any gradients: weights of 1.
    np.testing.assert_allclose(weigh(torchjd.CAGrad(c=0.7), np.eye(2)), [1.0, 1.0], atol=1e-9)
    np.testing.assert_allclose(weigh(torchjd.CAGrad(c=0.0), OPPOSED), [1.0, 1.0], atol=1e-9)
    # Of 1 and -1/2 the mean is 1/4. For the combination x, x/4 + c|x|/4 is least at x = -1/2 (the second alone), so
    # that the step is 1/4 - c/4: weights 1/2 and 1/2 + c/2, times 2/(1 + c).
    found = weigh("cagrad", np.array([[1.0, -0.5], [-0.5, 0.25]]))
    np.testing.assert_allclose(found, np.array([0.5, 0.7]) * 2.0 / 1.4, rtol=1e-6)


@pytest.mark.parametrize("name", [*NAMES, "upgrad"])
@pytest.mark.parametrize("num_streams", [2, 7])
def test_orthogonal_gradients_of_one_length_are_added_up(name: str, num_streams: int) -> None:
    rows = np.random.default_rng(3).normal(size=(num_streams, 20))
    whole = weigh(name, rows @ rows.T)
    for size in (1e-12, 1.0, 1e12):  # nor do weights go by the length as a whole
        np.testing.assert_allclose(weigh(name, size * np.eye(num_streams)), np.ones(num_streams), rtol=1e-7)
    for factor in (1e-8, 1e8):
        np.testing.assert_allclose(weigh(name, factor * (rows @ rows.T)), whole, rtol=1e-6)


def test_random_order_is_of_the_key_and_leaves_the_global_generators() -> None:
    rows = np.random.default_rng(0).normal(size=(6, 4))
    aggregator = Aggregator("pcgrad", 6)
    before = torch.get_rng_state(), random.getstate()
    drawn = [aggregator.weigh(rows @ rows.T, (key,)).tolist() for key in (1, 2, 1, 3)]
    assert drawn[0] == drawn[2]
    assert len({tuple(weights) for weights in drawn}) == 3
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]


def own(values: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """An aggregator with these weights."""

    class Own(torchjd.Weighting):  # type: ignore[misc, name-defined]
        def forward(self, gramian: torch.Tensor) -> torch.Tensor:
            return values(gramian)

    return torchjd.GramianWeightedAggregator(Own())


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: "median", InvalidValueError),
        (lambda: "upgrad", InvalidValueError),
        (lambda: torchjd.GradVac(), InvalidValueError),
        (lambda: torchjd.UPGrad(pref_vector=torch.ones(2)), InvalidValueError),
        (lambda: own(lambda gramian: torch.zeros(len(gramian))), InvalidValueError),
        (lambda: torchjd.ConFIG(), InvalidTypeError),
        (lambda: torchjd.UPGradWeighting(), InvalidTypeError),
        (lambda: torchjd.UPGrad, InvalidTypeError),
        (lambda: 3, InvalidTypeError),
    ],
)
def test_what_is_refused(make: Callable[[], Any], error: type[ErrorFacts]) -> None:
    with pytest.raises(error) as info:
        Aggregator(make(), 2)
    assert info.value.option == "conflict"


@pytest.mark.parametrize("size", [1, 3])
def test_a_solver_that_fails_is_named(size: int) -> None:
    def solve(gramian: torch.Tensor) -> torch.Tensor:
        if gramian[0, 1] < 0:
            raise RuntimeError("no way out")
        return torch.full((len(gramian) if gramian[0, 1] == 0 else size,), 1.0 if gramian[0, 1] == 0 else np.nan)

    failing = own(solve)
    for gramian in (OPPOSED, abs(OPPOSED)):
        with pytest.raises(InvalidValueError) as info:
            weigh(failing, gramian)
        assert info.value.found == "GramianWeightedAggregator"


def test_torchjd_or_a_solver_that_is_not_installed_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for missing in ("cvxpy", "clarabel"):
        there = {"numpy", "cvxpy", "clarabel"} - {missing}  # and no solver that others need
        monkeypatch.setattr(
            "torchjd._mixins.find_spec", lambda asked, there=there: object() if asked in there else None
        )
        with pytest.raises(InvalidValueError) as info:
            weigh("cagrad", OPPOSED)
        assert missing in str(info.value.expected)
        assert "conflict-solvers" in str(info.value.hint)
    monkeypatch.setitem(sys.modules, "torchjd.aggregation", None)
    with pytest.raises(InvalidValueError) as info:
        make_trainer(tmp_path, "pcgrad", train_dataset=at_odds())
    assert "adaptive-mixer[conflict]" in str(info.value.hint)
    with pytest.raises(InvalidValueError):
        GradientAggregation("median")
