from typing import Any

import numpy as np
import pytest

from mixer.measurements import Gradients
from mixer.policies import DoGE, Observation
from tests.mixer.policies.observed import NAN, measured, weights_of

GRAM = np.array([[4.0, 2, 1], [2, 9, -1], [1, -1, 1]])  # norms 2, 3, 1: mean 2
THIRDS = (1 / 3, 1 / 3, 1 / 3)


def update(gram: Any = GRAM, norms: Any = (4.0, 9.0, 1.0), step: int = 1) -> Observation:
    return measured(norms, [0, 0, 0], [20, 20, 20], gram, step=step)


def softmax(scores: Any) -> np.ndarray:
    return np.exp(scores) / np.exp(scores).sum()


@pytest.mark.parametrize(
    ("targets", "gram", "arguments", "scores"),
    [
        # Products with the others: 3, 1, 0; over the mean norm 2: 1.5, 0.5, 0.
        (None, GRAM, {}, [1.5, 0.5, 0]),
        # Towards the third: 1, −1 (cut at 0), 1; over 2.
        (["c"], GRAM, {}, [0.5, 0, 0.5]),
        # Two thirds of the first and one of the third: 3, 1, 1.
        ({"a": 2.0, "c": 1.0}, GRAM, {}, [1.5, 0.5, 0.5]),
        # The batch's own square of the target is 50, without noise it is 1.
        (["c"], [[4.0, 2, 1], [2, 9, -1], [1, -1, 50]], {}, [0.5, 0, 0.5]),
        (None, GRAM, {"max_score": 1.0}, [1.0, 0.5, 0]),
        # Gradients 10 times as long: products 100 times, norms 10 times; 15, 5, 0 cut at 5.
        (None, 100 * GRAM, {}, [5, 5, 0]),
        # The mean squared norm is 14/3: 9/14, 3/14, 0, in any unit.
        *[(None, unit * GRAM, {"scale_free": True}, [9 / 14, 3 / 14, 0]) for unit in (1.0, 1e-200, 1e200)],
    ],
)
def test_scores_by_hand(targets: Any, gram: Any, arguments: dict[str, Any], scores: list[float]) -> None:
    weights = weights_of(DoGE(targets, 1, 0.1, **arguments), update(gram), own=THIRDS)
    np.testing.assert_allclose(weights, softmax(0.1 * np.array(scores)))


def test_steps_add_up_from_the_own_weights() -> None:
    own = np.array([0.2, 0.3, 0.5])
    weights = weights_of(DoGE(None, 1, 0.1), update(), update(), own=own.tolist())
    np.testing.assert_allclose(weights, own * np.exp([0.3, 0.1, 0]) / (own @ np.exp([0.3, 0.1, 0])))


def test_an_unmeasured_stream_keeps_its_share() -> None:
    gram = [[4.0, 2, NAN], [2, 9, NAN], [NAN, NAN, NAN]]
    weights = weights_of(DoGE(None, 1, 1.0), update(gram, (4.0, 9.0, NAN)), own=(0.3, 0.3, 0.4))
    np.testing.assert_allclose(weights, [0.3, 0.3, 0.4])  # the first two help each other alike
    assert (DoGE().needs, DoGE(["a"]).needs) == (
        (Gradients(interval_steps=10),),
        (Gradients(variance=True, interval_steps=10),),
    )
