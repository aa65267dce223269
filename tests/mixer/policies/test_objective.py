from typing import Any

import numpy as np
import pytest

from mixer.measurements.alignment import TargetStatistics
from mixer.policies.objective import Objective, as_objective
from mixer.utils.errors import InvalidTypeError
from tests.mixer.policies.observed import NAN
from tests.refusals import refused


@pytest.mark.parametrize(
    ("given", "results", "expected"),
    [
        (Objective(["a", "b"]), {"a": 2.0, "b": 3.0, "c": 9.0}, 2.5),
        (Objective({"a": 3, "b": 1}), {"a": 2.0, "b": 4.0}, 2.5),
        (Objective({"a": 1, "b": 0}), {"a": 2.0, "b": NAN}, 2.0),
        (Objective(["a", "b"], "worst"), {"a": 2.0, "b": 3.0, "c": 9.0}, 3.0),
        (Objective(["a", "b"], "worst", metric="f1", greater_is_better=True), {"a": 0.2, "b": 0.3}, 0.2),
        (Objective(), {"a": 2.0, "b": 4.0}, 3.0),
        (Objective(["a", "b"]), {"a": 2.0}, NAN),
        (Objective(["a"]), {"a": NAN}, NAN),
    ],
)
def test_values_by_hand(given: Objective, results: dict[str, float], expected: float) -> None:
    assert given.value(results) == pytest.approx(expected, nan_ok=True)


def test_weights_are_the_gradient_of_the_average_and_of_the_smooth_maximum() -> None:
    losses, importance, tau = np.array([1.0, 1.7, 0.2]), np.array([0.5, 0.25, 0.25]), 3.0
    objective = Objective({"a": 2, "b": 1, "c": 1}, "worst", bounds={"old": 1.1}).of_sets(["a", "b", "c", "old"])
    assert objective.names == ("a", "b", "c", "old")

    def smooth_maximum(values: np.ndarray) -> float:
        return float(np.log((importance * np.exp(tau * values)).sum()) / tau)

    expected = [(smooth_maximum(losses + step) - smooth_maximum(losses - step)) / 2e-6 for step in 1e-6 * np.eye(3)]
    found = objective.weights(np.array([*losses, 5.0]), tau)
    np.testing.assert_allclose(found, [*expected, 0.0], atol=1e-8)
    assert Objective(["a", "b"]).weights(np.array([NAN, 9.0]), tau).tolist() == [0.5, 0.5]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (None, None),
        ("worst", Objective(kind="worst")),
        ("code", Objective(["code"])),
        (["a", "b"], Objective(["a", "b"])),
        ({"a": 2.0}, Objective({"a": 2.0})),
        (Objective(["a"]), Objective(["a"])),
    ],
)
def test_short_forms(given: Any, expected: Objective | None) -> None:
    assert as_objective(given) == expected


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: Objective("code"), "objective.targets"),
        (lambda: Objective([]), "objective.targets"),
        (lambda: Objective({"a": -1.0}), "objective"),
        (lambda: Objective({"a": 0.0}), "objective"),
        (lambda: Objective(kind="mean"), "objective.kind"),  # type: ignore[arg-type]
        (lambda: Objective(["a", "b", "a"]), "objective.targets"),
        (lambda: Objective([["a"]]), "objective.targets"),  # type: ignore[list-item]
        (lambda: Objective(bounds=["old"]), "objective.bounds"),  # type: ignore[arg-type]
        (lambda: Objective(bounds={"old": NAN}), "objective.bounds"),
        (lambda: Objective(["a"], greater_is_better=True), "objective.greater_is_better"),
        (lambda: Objective(development_share="half"), "objective.development_share"),  # type: ignore[arg-type]
        (lambda: Objective(["x"]).of_sets(["a", "b"]), "objective.targets"),
    ],
)
def test_wrong_ones_are_refused(make: Any, option: str) -> None:
    with refused(option):
        make()
    for wrong in (3, np.array(["a", "b"])):
        with refused("objective", kind=InvalidTypeError):
            as_objective(wrong)


def test_worth_is_in_units_of_the_largest_and_knows_what_is_missing() -> None:
    alignment = np.array([[4.0, -2.0, NAN], [0.0, 2.0, NAN]])
    seen = TargetStatistics(np.array([1.0, 2.0]), alignment, np.where(np.isnan(alignment), NAN, 2.0))
    worth = seen.worth(np.array([0.5, 0.5]))
    np.testing.assert_allclose(worth.scores, [1.0, 0.0, NAN])
    assert worth.largest == 2.0
    np.testing.assert_allclose(worth.variance[:2], [0.5, 0.5])  # (0.25·4 + 0.25·4) / 2²
    assert seen.worth(np.zeros(2)).largest == 0.0
