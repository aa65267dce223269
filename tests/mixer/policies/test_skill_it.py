import math

import numpy as np
import pytest

from mixer.policies import Decision, SkillIt
from tests.mixer.policies.losses import mixture, observe

GRAPH = [[1.0, 0.5], [0.0, 1.0]]  # a helps b half as much as itself


def run(policy: SkillIt, rows: list, own: tuple[float, ...] = (0.5, 0.5)) -> list[Decision]:
    batches = (policy.update(observe(step, evaluation=row, num_streams=len(own))) for step, row in enumerate(rows, 1))
    return [policy.start(mixture(own)), *batches]


def share(exponent: float, other: float = 0.0) -> float:
    return 1 / (1 + math.exp(other - exponent))


def test_by_hand() -> None:
    first, second, third = run(SkillIt(GRAPH, 0.2), [[1.0, 2.0], [3.0, 1.0]])
    assert first.weights[0] == pytest.approx(share(0.3, 0.2))  # L = 1: 0.2 · 1.5 against 0.2 · 1
    assert second.weights[0] == pytest.approx(0.5)  # 0.2 · (1 + 0.5 · 2) against 0.2 · 2
    assert third.weights[0] == pytest.approx(share(1.1, 0.6))  # sums (4, 3): 0.2 · 5.5 against 0.2 · 3


def test_only_the_window_counts_and_nothing_is_carried_on() -> None:
    rows = [[9.0, 1.0], [1.0, 2.0], [1.0, 2.0], [1.0, 2.0]]
    np.testing.assert_allclose(
        run(SkillIt(GRAPH), rows)[-1].weights, run(SkillIt(GRAPH), rows[1:])[-1].weights, rtol=1e-12
    )


def test_by_itself_each_stream_is_weighed_by_its_loss() -> None:
    first, second = run(SkillIt(learning_rate=1.0), [[1.0, 1.0 + math.log(3)]], (0.75, 0.25))
    np.testing.assert_allclose(first.weights, [0.75, 0.25])
    np.testing.assert_allclose(second.weights, [0.5, 0.5])  # 3 : 1 of its own times 1 : 3


def test_a_graph_by_name_has_ones_on_its_diagonal() -> None:
    by_name = run(SkillIt({"a": {"b": 0.5}}), [[1.0, 3.0]])[-1]
    np.testing.assert_array_equal(by_name.weights, run(SkillIt(GRAPH), [[1.0, 3.0]])[-1].weights)
    other = run(SkillIt({"b": {"b": 0.0}, "a": {"a": 2.0}}), [[1.0, 3.0]])[-1]
    np.testing.assert_array_equal(other.weights, run(SkillIt([[2.0, 0.0], [0.0, 0.0]]), [[1.0, 3.0]])[-1].weights)


def test_a_stream_without_a_loss_counts_as_the_mean_of_the_others() -> None:
    own, graph = (0.2, 0.3, 0.5), np.eye(3)
    gap = run(SkillIt(graph), [[1.0, 3.0, math.nan]], own)[-1]
    np.testing.assert_allclose(gap.weights, run(SkillIt(graph), [[1.0, 3.0, 2.0]], own)[-1].weights)


def test_an_evaluation_without_one_stream_says_nothing_of_it() -> None:
    # Sums are over as many evaluations for all: b has 2 twice.
    gap = run(SkillIt(), [[1.0, 2.0], [3.0, math.inf]])[-1]
    assert gap.weights[0] == pytest.approx(0.5)


def test_between_evaluations_the_weights_stay() -> None:
    *_, last, later = run(SkillIt(GRAPH), [[1.0, 3.0], None])
    np.testing.assert_array_equal(later.weights, last.weights)


def test_a_stream_that_left_is_still_helped() -> None:
    # c has left with its 0.2; a helps it, b does not: exponents 1 + 2 against 1 for the 0.8 that is left.
    policy = SkillIt({"a": {"c": 1.0}}, 1.0)
    policy.start(mixture([0.4, 0.4, 0.2]))
    gone = observe(1, evaluation=[1.0, 1.0, 2.0], weights=[0.4, 0.4, 0.2], shares=[0.5, 0.5, 0.0])
    expected = [0.8 * share(3.0, 1.0), 0.8 * share(1.0, 3.0), 0.2]
    np.testing.assert_allclose(policy.update(gone).weights, expected)


@pytest.mark.parametrize(
    ("graph", "message"),
    [
        ([[1.0]], r"expected a graph of shape \[2, 2\] .* got \[1, 1\]"),
        ([[1.0, 0.0], [1.0]], "rows of equal length"),
        ([[1.0, -1.0], [0.0, 1.0]], "finite and 0 or more"),
        ([[1.0, math.nan], [0.0, 1.0]], "finite and 0 or more"),
        ({"a": {"x": 1.0}, "y": {}}, r"the graph names \['x', 'y'\], but the streams are \['a', 'b'\]"),
        ({"a": 0.5}, "a mapping for each helper"),
    ],
)
def test_a_graph_that_does_not_fit_is_refused_at_the_start(graph: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        SkillIt(graph).start(mixture([0.5, 0.5]))


@pytest.mark.parametrize("arguments", [{"learning_rate": -0.1}, {"window": 0}])
def test_values_outside_their_ranges_are_refused(arguments: dict) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(arguments))} must be"):
        SkillIt(**arguments)
