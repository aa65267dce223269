import json

import numpy as np
import pytest

from mixer.policies import DoReMi, Fixed
from tests.mixer.policies.seen import NOTHING, mixture_of, seen

LN3 = float(np.log(3))
OWN = [0.1, 0.9]


def test_by_hand_from_a_reference_model() -> None:
    """(e^{ln 3}, 1)/4 = (0.75, 0.25), smoothed with c = 0.2: 0.8 · 0.75 + 0.1 = 0.7. The mean of one is that one.

    Then the second stream's excess is larger by ln(7/3): equal, smoothed equal. Means 0.6 and 0.4.
    """
    policy = DoReMi(1.0, 0.2, acts_on="sampling")
    policy.start(mixture_of(OWN))
    assert policy.averaged_weights == {"a": 0.5, "b": 0.5}
    first = policy.update(seen(1, [9.0, 9.0], excess_losses=[LN3, 0.0]))
    np.testing.assert_allclose(first.weights, [0.7, 0.3], rtol=1e-14)
    assert policy.averaged_weights == pytest.approx({"a": 0.7, "b": 0.3}, rel=1e-14)
    second = policy.update(seen(2, [9.0, 9.0], excess_losses=[0.0, float(np.log(7 / 3))]))
    np.testing.assert_allclose(second.weights, [0.5, 0.5], rtol=1e-14)
    assert policy.averaged_weights == pytest.approx({"a": 0.6, "b": 0.4}, rel=1e-14)


def test_by_hand_from_recorded_losses() -> None:
    """Excesses max(L − ref, 0) = (ln 3, 0), the second stream being better than its reference."""
    policy = DoReMi(1.0, 0.2, {"b": 4.0, "a": 2.0}, "sampling")
    policy.start(mixture_of(OWN))
    decision = policy.update(seen(1, [2.0 + LN3, 3.0], excess_losses=[0.0, 99.0]))
    np.testing.assert_allclose(decision.weights, [0.7, 0.3], rtol=1e-14)


def test_by_default_the_losses_are_weighed_and_streams_are_drawn_by_their_own_weights() -> None:
    policy = DoReMi(1.0, 0.2)
    policy.start(mixture_of(OWN))
    decision = policy.update(seen(1, [9.0, 9.0], excess_losses=[LN3, 0.0]))
    assert decision.weights.tolist() == OWN
    np.testing.assert_allclose(decision.weights * decision.loss_weights, [0.7, 0.3], rtol=1e-14)


def test_it_needs_a_reference_model_or_only_losses() -> None:
    assert DoReMi().needs == {"excess_loss"}
    assert DoReMi(reference_losses={"a": 1.0}).needs == {"loss"}


def test_the_defaults_are_those_of_the_paper() -> None:
    policy = DoReMi()
    assert (policy.step_size, policy.smoothing, policy.acts_on) == (1.0, 1e-3, "loss")


def test_a_stream_without_a_weight_of_its_own_has_none_in_the_result() -> None:
    policy = DoReMi(1.0, 0.2)
    policy.start(mixture_of([0.1, 0.9, 0.0]))
    policy.update(seen(1, [9.0] * 3, excess_losses=[LN3, 0.0, 50.0]))
    assert policy.averaged_weights == pytest.approx({"a": 0.7, "b": 0.3, "c": 0.0}, rel=1e-14)


def test_the_average_counts_steps_without_losses() -> None:
    policy = DoReMi(1.0, 0.0)
    policy.start(mixture_of(OWN))
    policy.update(seen(1, [1.0, 1.0]))  # not measured: uniform as before
    policy.update(seen(2, [1.0, 1.0], excess_losses=[LN3, 0.0]))
    policy.update(seen(3, [1.0, 1.0], excess_losses=[NOTHING, NOTHING]))
    assert policy.averaged_weights == pytest.approx({"a": (0.5 + 0.75 + 0.75) / 3, "b": 1 / 3}, rel=1e-14)


def test_the_average_is_that_of_all_weights_and_survives_a_resume() -> None:
    random = np.random.default_rng(0)
    policy, resumed = DoReMi(0.5, acts_on="sampling"), DoReMi(0.5, acts_on="sampling")
    policy.start(mixture_of([0.2, 0.3, 0.5]))
    all_weights = []
    for step in range(1, 30):
        observation = seen(step, [1.0] * 3, excess_losses=random.random(3).tolist())
        all_weights.append(policy.update(observation).weights)
        if step == 11:
            resumed.start(mixture_of([0.2, 0.3, 0.5]))
            resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
        elif step > 11:
            resumed.update(observation)
    assert list(policy.averaged_weights.values()) == pytest.approx(np.mean(all_weights, axis=0).tolist(), rel=1e-12)
    assert resumed.averaged_weights == policy.averaged_weights


def test_the_result_is_the_mixture_of_a_second_run() -> None:
    policy = DoReMi()
    policy.start(mixture_of(OWN))
    policy.update(seen(1, [9.0, 9.0], excess_losses=[LN3, 0.0]))
    second = Fixed(policy.averaged_weights).start(mixture_of([0.5, 0.5]))
    assert second.weights.tolist() == pytest.approx(list(policy.averaged_weights.values()), rel=1e-14)


class TestErrors:
    def test_there_is_no_average_before_a_run(self) -> None:
        with pytest.raises(ValueError, match=r"no averaged_weights before a run; train with mixing=DoReMi"):
            _ = DoReMi().averaged_weights

    @pytest.mark.parametrize(
        ("losses", "message"),
        [
            ({"a": float("nan")}, "reference_losses must be finite numbers, but 'a' has nan"),
            ({"a": "low"}, "reference_losses must be finite numbers, but 'a' has 'low'"),
            ([1.0, 2.0], "reference_losses must map the names of streams to losses, got list"),
        ],
    )
    def test_losses_that_are_none_are_refused_at_once(self, losses: object, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            DoReMi(reference_losses=losses)

    @pytest.mark.parametrize(
        ("losses", "message"),
        [
            ({"a": 1.0}, r"missing: \['b'\], unknown: \[\]"),
            ({"a": 1, "b": 1, "x": 1}, r"missing: \[\], unknown: \['x'\]"),
        ],
    )
    def test_losses_of_other_streams_are_refused_at_the_start(self, losses: dict, message: str) -> None:
        with pytest.raises(ValueError, match=r"DoReMi: reference_losses must name each of .*" + message):
            DoReMi(reference_losses=losses).start(mixture_of(OWN))
