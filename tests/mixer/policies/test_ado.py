import json

import numpy as np
import pytest

from mixer.policies import ADO
from mixer.policies.shared.scaling_law import ScalingLaw
from tests.mixer.policies.seen import NOTHING, mixture_of, seen

OWN = [0.25, 0.75]
FLOORS, SCALES, EXPONENTS = np.array([1.0, 2.0]), np.array([8.0, 4.0]), np.array([0.5, 0.25])


def losses_after(amounts: np.ndarray) -> list[float]:
    return (FLOORS + SCALES * amounts**-EXPONENTS).tolist()


def follow(policy: ADO, num_steps: int, first: int = 1, shares: list[float] | None = None) -> list[np.ndarray]:
    """Losses that follow two laws, 8 samples of each stream a step."""
    return [
        policy.update(seen(step, losses_after(np.array([8.0 * step] * 2)), OWN, shares)).weights
        for step in range(first, first + num_steps)
    ]


def slopes(amount: float) -> np.ndarray:
    return EXPONENTS * SCALES * amount ** (-EXPONENTS - 1.0)


class TestPaper:
    def test_by_hand(self) -> None:
        """The 20th step fits both laws as they are; h = μ, since streams were drawn by μ; p̄ = μ until then."""
        policy = ADO(num_warmup_steps=20, refit_steps=100, num_ignored_steps=0)
        policy.start(mixture_of(OWN))
        *before, first, second = follow(policy, 21)
        np.testing.assert_array_equal(before, [OWN] * 19)
        law = policy.laws["a"]
        assert isinstance(law, ScalingLaw)
        assert (np.exp(law.log_floor), np.exp(law.log_scale), law.exponent) == pytest.approx((1.0, 8.0, 0.5), rel=1e-4)
        own = np.array(OWN)
        preferred = own * np.sqrt(own) * slopes(160.0)
        preferred /= preferred.sum()
        np.testing.assert_allclose(first, 0.9 * own + 0.1 * preferred, rtol=1e-5)
        # p̄ = (20 μ + p)/21, and the same laws a little farther on.
        mean = (20 * own + first) / 21
        preferred = own * np.sqrt(own) * slopes(168.0)
        preferred /= preferred.sum()
        np.testing.assert_allclose(second, 0.9 * mean + 0.1 * preferred, rtol=1e-5)

    def test_credit_follows_what_was_drawn(self) -> None:
        """h = 0.9 μ + 0.1 (1, 0) after the first step."""
        policy = ADO(num_ignored_steps=0)
        policy.start(mixture_of(OWN))
        policy.update(seen(1, [1.0, 1.0], weights=[1.0, 0.0]))
        assert policy.state_dict()["credit"] == pytest.approx([0.9 * 0.25 + 0.1, 0.9 * 0.75], rel=1e-14)

    def test_the_mean_nears_a_constant_preference_as_a_power_of_time(self) -> None:
        """p̄' = (ρ − p̄)/(10 t): from t = 20 to 200 the distance to ρ falls by 10^{−0.1}. With ρ = (0, 1) by h and μ."""
        policy = ADO(num_warmup_steps=20, refit_steps=1000, num_ignored_steps=0, floor=0.0, credit_decay=0.0)
        policy.start(mixture_of(OWN))
        for step in range(1, 201):
            losses = losses_after(np.array([8.0 * step] * 2))
            policy.update(seen(step, losses, weights=[0.0, 1.0]))
            if step == 20:
                early = policy.state_dict()["mean"][0]
        assert policy.state_dict()["mean"][0] / early == pytest.approx(10**-0.1, rel=0.01)

    def test_tokens_are_the_amounts_where_weights_are_of_tokens(self) -> None:
        laws = []
        for unit in ("samples", "tokens"):
            policy = ADO(num_warmup_steps=20, num_ignored_steps=0, unit=unit)
            policy.start(mixture_of(OWN))
            follow(policy, 20)
            laws.append(policy.laws["a"])
        assert laws[1].exponent == pytest.approx(laws[0].exponent, rel=1e-6)
        # 10 tokens a sample: exp(a) grows by 10^α.
        assert laws[1].log_scale - laws[0].log_scale == pytest.approx(0.5 * np.log(10), rel=1e-4)


class TestCode:
    def test_by_hand(self) -> None:
        """n is of both streams, 16 a step; h by counts is (1/2 − x, 1/2 + x), so that √(h(1 − h)) cancels."""
        policy = ADO("code", num_warmup_steps=20, refit_steps=100, num_ignored_steps=0)
        policy.start(mixture_of(OWN))
        first, second = follow(policy, 21)[-2:]
        own, scales = np.array(OWN), SCALES * 2**EXPONENTS  # n is twice what the losses go by
        preferred = own * EXPONENTS * scales * 320.0 ** (-EXPONENTS - 1)
        preferred /= preferred.sum()
        np.testing.assert_allclose(first, 0.9 * own + 0.1 * preferred, rtol=1e-5)
        mean = (20 * own + preferred) / 21
        preferred = own * EXPONENTS * scales * 336.0 ** (-EXPONENTS - 1)
        preferred /= preferred.sum()
        np.testing.assert_allclose(second, 0.9 * mean + 0.1 * preferred, rtol=1e-5)

    def test_credit_goes_by_counts(self) -> None:
        policy = ADO("code", num_ignored_steps=0)
        policy.start(mixture_of(OWN))
        policy.update(seen(1, [1.0, 1.0], weights=[1.0, 0.0], counts=[2, 6]))
        assert policy.state_dict()["credit"] == pytest.approx(OWN, rel=1e-14)

    def test_the_floor_is_one_of_the_preference(self) -> None:
        """With p = ρ the least share is the floor."""
        policy = ADO("code", num_warmup_steps=20, num_ignored_steps=0, floor=0.4, mean_share=0.0)
        policy.start(mixture_of([0.99, 0.01]))
        assert follow(policy, 20)[-1].tolist() == pytest.approx([0.6, 0.4])


@pytest.mark.parametrize("form", ["paper", "code"])
class TestBoth:
    def test_the_stream_that_still_falls_gets_more(self, form: str) -> None:
        policy = ADO(form, num_warmup_steps=50, refit_steps=50, num_ignored_steps=5, mean_share=0.0)
        policy.start(mixture_of([0.5, 0.5]))
        noise = 0.002 * np.random.default_rng(0).standard_normal(50)
        for step in range(1, 51):
            decision = policy.update(seen(step, [2.0 + noise[step - 1], 2.0 + 4.0 * step**-0.3]))
        assert decision.weights[1] > 0.9
        assert decision.weights[0] == pytest.approx(0.01)

    def test_fits_come_when_they_are_due(self, form: str, monkeypatch: pytest.MonkeyPatch) -> None:
        fitted = []
        policy = ADO(form, num_warmup_steps=10, refit_steps=7, num_ignored_steps=2)
        monkeypatch.setattr(policy, "_fit", lambda stream: fitted.append(stream))
        policy.start(mixture_of(OWN))
        due = []
        for step in range(1, 30):
            fitted.clear()
            follow(policy, 1, step)
            due += [step] * bool(fitted)
        assert due == [10, 17, 24]

    def test_losses_of_the_first_steps_are_ignored(self, form: str) -> None:
        policy = ADO(form, num_warmup_steps=10, num_ignored_steps=4)
        policy.start(mixture_of(OWN))
        follow(policy, 9)
        assert len(policy.state_dict()["history"]["points"][0][0]) == 5

    def test_a_stream_without_a_law_has_its_own_share_of_the_preference(self, form: str) -> None:
        policy = ADO(form, num_warmup_steps=20, num_ignored_steps=0, mean_share=0.0)
        policy.start(mixture_of([0.2, 0.3, 0.5]))
        for step in range(1, 21):
            decision = policy.update(seen(step, [NOTHING, *losses_after(np.array([8.0 * step] * 2))]))
        assert policy.laws["a"] is None
        assert decision.weights[0] == pytest.approx(0.2)

    def test_a_stream_that_left_waits_with_its_own_weight_and_credit(self, form: str) -> None:
        policy = ADO(form, num_warmup_steps=20, num_ignored_steps=0)
        policy.start(mixture_of(OWN))
        follow(policy, 30)
        credit = policy.state_dict()["credit"][1]
        for step in range(31, 60):
            decision = policy.update(seen(step, [1.5, NOTHING], OWN, shares=[1.0, 0.0], counts=[8, 0]))
        assert decision.weights.tolist() == pytest.approx(OWN)
        assert policy.state_dict()["credit"][1] == credit
        assert np.isfinite(follow(policy, 1, 60)[0]).all()

    def test_one_stream_and_none(self, form: str) -> None:
        policy = ADO(form, num_warmup_steps=8, refit_steps=2, num_ignored_steps=0)
        policy.start(mixture_of([1.0]))
        for step in range(1, 20):
            active = step % 3 > 0
            losses = [1.0 + 1.0 / step] if active else [NOTHING]
            decision = policy.update(seen(step, losses, shares=[float(active)], counts=[8 * active]))
            assert decision.weights.tolist() == [1.0]

    def test_many_streams(self, form: str) -> None:
        policy = ADO(form, num_warmup_steps=8, num_ignored_steps=0, floor=0.0015)
        policy.start(mixture_of([0.003] * 300))
        exponents = np.linspace(0.1, 0.7, 300)
        for step in range(1, 9):
            decision = policy.update(seen(step, (1.0 + step**-exponents).tolist()))
        assert decision.weights.sum() == pytest.approx(1.0)
        assert decision.weights.min() >= 0.0015 - 1e-15

    def test_it_goes_on_alike_after_a_resume_at_any_step(self, form: str) -> None:
        for cut in (3, 19, 20, 31):
            policy, resumed = (ADO(form, 20, 10, 2, max_points=8) for _ in range(2))
            for made in (policy, resumed):
                made.start(mixture_of(OWN))
            follow(policy, cut)
            resumed.load_state_dict(json.loads(json.dumps(policy.state_dict(), allow_nan=False)))
            np.testing.assert_array_equal(follow(resumed, 25, cut + 1), follow(policy, 25, cut + 1))
            assert resumed.state_dict() == policy.state_dict()

    def test_losses_that_have_no_law_leave_the_own_weights(self, form: str) -> None:
        policy = ADO(form, 6, 1, 0)
        policy.start(mixture_of(OWN))
        for step in range(1, 12):
            assert policy.update(seen(step, [-1.0, 0.0])).weights.tolist() == OWN


class TestErrors:
    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            ({"form": "both"}, "form must be 'paper' or 'code', got 'both'"),
            ({"num_warmup_steps": 0}, "num_warmup_steps must be a whole number, 1 or more, got 0"),
            ({"refit_steps": 0}, "refit_steps must be a whole number, 1 or more, got 0"),
            ({"num_ignored_steps": 1001}, "num_ignored_steps must be at most num_warmup_steps=1000, got 1001"),
            ({"floor": -0.1}, r"floor must be in \[0, 1\], got -0.1"),
            ({"credit_decay": 1.5}, r"credit_decay must be in \[0, 1\], got 1.5"),
            ({"mean_share": float("nan")}, r"mean_share must be in \[0, 1\], got nan"),
            ({"max_points": 7}, "max_points must be an even number, 8 or more, got 7"),
        ],
    )
    def test_arguments_that_cannot_be_are_refused(self, arguments: dict, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            ADO(**arguments)

    def test_floors_above_one_are_refused_at_the_start(self) -> None:
        with pytest.raises(ValueError, match=r"ADO: floor 0.01 for each of 101 streams is more than 1 in all"):
            ADO(floor=0.01).start(mixture_of([1 / 101] * 101))

    def test_there_are_no_laws_before_a_run(self) -> None:
        assert ADO().laws == {}
