import numpy as np
import pytest

from mixer.policies import ADO
from mixer.policies.shared.scaling_law import ScalingLaw
from tests.mixer.policies.observed import NAN, mixture, observe

OWN = [0.25, 0.75]
FLOORS, SCALES, EXPONENTS = np.array([1.0, 2.0]), np.array([8.0, 4.0]), np.array([0.5, 0.25])


def started(*arguments: object, own: list[float] = OWN, **options: object) -> ADO:
    policy = ADO(*arguments, **{"num_ignored_steps": 0, **options})  # type: ignore[arg-type]
    policy.start(mixture(own))
    return policy


def losses_at(step: int) -> np.ndarray:
    """Two laws, of 8 samples of each stream a step."""
    return FLOORS + SCALES * (8.0 * step) ** -EXPONENTS


def follow(policy: ADO, num_steps: int, first: int = 1) -> list[np.ndarray]:
    steps = range(first, first + num_steps)
    return [policy.update(observe(step, losses_at(step), weights=OWN)).weights for step in steps]


def normed(values: np.ndarray) -> np.ndarray:
    return values / values.sum()


def slopes(amount: float, scales: np.ndarray = SCALES) -> np.ndarray:
    return EXPONENTS * scales * amount ** (-EXPONENTS - 1.0)


class TestPaper:
    def test_by_hand(self) -> None:
        """The 20th step fits both laws as they are; h = μ, since streams were drawn by μ; p̄ = μ until then."""
        policy = started(num_warmup_steps=20, refit_steps=100)
        *before, first, second = follow(policy, 21)
        np.testing.assert_array_equal(before, [OWN] * 19)
        law, own = policy.laws["a"], np.array(OWN)
        assert isinstance(law, ScalingLaw)
        assert (np.exp(law.log_floor), np.exp(law.log_scale), law.exponent) == pytest.approx((1.0, 8.0, 0.5), rel=1e-4)
        np.testing.assert_allclose(first, 0.9 * own + 0.1 * normed(own * np.sqrt(own) * slopes(160.0)), rtol=1e-5)
        # p̄ = (20 μ + p)/21, and the same laws a little farther on.
        mean = (20 * own + first) / 21
        np.testing.assert_allclose(second, 0.9 * mean + 0.1 * normed(own * np.sqrt(own) * slopes(168.0)), rtol=1e-5)

    def test_tokens_are_the_amounts_where_weights_are_of_tokens(self) -> None:
        policies = [started(num_warmup_steps=20, unit=unit) for unit in ("samples", "tokens")]
        samples, tokens = (follow(policy, 20) and policy.laws["a"] for policy in policies)
        assert tokens.exponent == pytest.approx(samples.exponent, rel=1e-6)
        # 10 tokens per sample: exp(a) grows by 10^α.
        assert tokens.log_scale - samples.log_scale == pytest.approx(0.5 * np.log(10), rel=1e-4)


class TestCode:
    def test_by_hand(self) -> None:
        """n is of both streams, 16 a step; h by counts is (1/2 − x, 1/2 + x), so that √(h(1 − h)) cancels."""
        first, second = follow(started("code", num_warmup_steps=20, refit_steps=100), 21)[-2:]
        own, scales = np.array(OWN), SCALES * 2**EXPONENTS  # n is twice what the losses go by
        preferred = normed(own * slopes(320.0, scales))
        np.testing.assert_allclose(first, 0.9 * own + 0.1 * preferred, rtol=1e-5)
        mean = (20 * own + preferred) / 21
        np.testing.assert_allclose(second, 0.9 * mean + 0.1 * normed(own * slopes(336.0, scales)), rtol=1e-5)

    def test_the_floor_is_one_of_the_preference(self) -> None:
        """With p = ρ the least share is the floor."""
        policy = started("code", num_warmup_steps=20, floor=0.4, mean_share=0.0, own=[0.99, 0.01])
        assert follow(policy, 20)[-1].tolist() == pytest.approx([0.6, 0.4])


@pytest.mark.parametrize(("form", "credit"), [("paper", [0.9 * 0.25 + 0.1, 0.9 * 0.75]), ("code", OWN)])
def test_credit_follows_what_was_drawn_by_weights_or_by_counts(form: str, credit: list[float]) -> None:
    policy = started(form)
    policy.update(observe(1, [1.0, 1.0], [2, 6], weights=[1.0, 0.0]))
    assert policy.state_dict()["credit"] == pytest.approx(credit, rel=1e-14)


@pytest.mark.parametrize("form", ["paper", "code"])
class TestBoth:
    def test_fits_come_when_they_are_due_and_losses_of_the_first_steps_are_ignored(self, form, monkeypatch) -> None:
        due: list[int] = []
        policy = started(form, num_warmup_steps=10, refit_steps=7, num_ignored_steps=2)
        for step in range(1, 30):
            monkeypatch.setattr(policy, "_fit", lambda stream, step=step: due.append(step))
            follow(policy, 1, step)
            assert step != 9 or len(policy.state_dict()["history"]["points"][0][0]) == 7
        assert sorted(set(due)) == [10, 17, 24]

    def test_a_stream_without_a_law_has_its_own_share_of_the_preference(self, form: str) -> None:
        policy = started(form, num_warmup_steps=20, mean_share=0.0, own=[0.2, 0.3, 0.5])
        for step in range(1, 21):
            decision = policy.update(observe(step, [NAN, *losses_at(step)]))
        assert policy.laws["a"] is None
        assert decision.weights[0] == pytest.approx(0.2)
