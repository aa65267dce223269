import math
from typing import Any

import numpy as np
import pytest

from mixer.policies import Decision, SkillIt
from tests.mixer.policies.observed import led, observe, weights_of

GRAPH = [[1.0, 0.5], [0.0, 1.0]]  # a helps b half as much as itself


def run(policy: SkillIt, rows: list[Any], own: tuple[float, ...] = (0.5, 0.5)) -> list[Decision]:
    steps = enumerate(rows, 1)
    return led(policy, [observe(step, [1.0] * len(own), evaluation_losses=row) for step, row in steps], own)


def share(exponent: float, other: float = 0.0) -> float:
    return 1 / (1 + math.exp(other - exponent))


def test_by_hand() -> None:
    first, second, third, later = run(SkillIt(GRAPH, 0.2), [[1.0, 2.0], [3.0, 1.0], None])
    assert first.weights[0] == pytest.approx(share(0.3, 0.2))  # L = 1: 0.2 · 1.5 against 0.2 · 1
    assert second.weights[0] == pytest.approx(0.5)  # 0.2 · (1 + 0.5 · 2) against 0.2 · 2
    assert third.weights[0] == pytest.approx(share(1.1, 0.6))  # sums (4, 3): 0.2 · 5.5 against 0.2 · 3
    np.testing.assert_array_equal(later.weights, third.weights)  # between evaluations they stay


def test_only_the_window_counts_and_nothing_is_carried_on() -> None:
    rows = [[9.0, 1.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]
    found, expected = (run(SkillIt(GRAPH), shown)[-1].weights for shown in (rows, rows[1:]))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


def test_by_itself_each_stream_is_weighed_by_its_loss() -> None:
    first, second = run(SkillIt(learning_rate=1.0), [[1.0, 1.0 + math.log(3)]], (0.75, 0.25))
    np.testing.assert_allclose(first.weights, [0.75, 0.25])
    np.testing.assert_allclose(second.weights, [0.5, 0.5])  # 3 : 1 of its own times 1 : 3


@pytest.mark.parametrize(
    ("by_name", "graph"), [({"a": {"b": 0.5}}, GRAPH), ({"b": {"b": 0.0}, "a": {"a": 2.0}}, [[2.0, 0.0], [0.0, 0.0]])]
)
def test_a_graph_by_name_has_ones_on_its_diagonal(by_name: Any, graph: Any) -> None:
    found, expected = (run(SkillIt(given), [[1.0, 3.0]])[-1].weights for given in (by_name, graph))
    np.testing.assert_array_equal(found, expected)


def test_a_stream_without_a_loss_counts_as_the_mean_of_the_others() -> None:
    own, graph = (0.2, 0.3, 0.5), np.eye(3)
    gap, expected = (run(SkillIt(graph), [[1.0, 3.0, loss]], own)[-1].weights for loss in (math.nan, 2.0))
    np.testing.assert_allclose(gap, expected)
    # Sums are over as many evaluations for all: b has 2 twice.
    assert run(SkillIt(), [[1.0, 2.0], [3.0, math.inf]])[-1].weights[0] == pytest.approx(0.5)


def test_a_stream_that_left_is_still_helped() -> None:
    # c has left with its 0.2; a helps it, b does not: exponents 1 + 2 against 1 for the 0.8 that is left.
    own = [0.4, 0.4, 0.2]
    gone = observe(1, evaluation_losses=[1.0, 1.0, 2.0], weights=own, shares=[0.5, 0.5, 0.0])
    found = weights_of(SkillIt({"a": {"c": 1.0}}, 1.0), gone, own=own)
    np.testing.assert_allclose(found, [0.8 * share(3.0, 1.0), 0.8 * share(1.0, 3.0), 0.2])
