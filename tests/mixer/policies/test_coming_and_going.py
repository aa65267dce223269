"""What every policy does while streams enter and leave, and one has no weight of its own."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mixer.policies import Decision, Floor, Hold, Mixture, Observation, Policy, Smoothed, TrustRegion
from tests.mixer.policies.observed import measured
from tests.mixer.policies.test_contract import MAKERS, NAMES, SIZES

OWN = np.array([0.5, 0.0, 0.2, 0.3])
BATCH_SIZE, NUM_STEPS = 24, 30

# Others mix by what they are given, by losses alone, or give each stream a least share whatever its own weight.
BY_OWN_WEIGHTS = {"ADO", "CoBa", "DWA", "DoGE", "Fixed, own weights", "GRAPE", "GradNorm"}
BY_OWN_WEIGHTS |= {"BalancedPiKE", "PiKE", "RegularizedBalance", "SkillIt"}
# What a factor on a loss is relative to: the streams' own weights, or each stream alike.
FACTORS_BY_OWN = {"CoBa, loss", "DWA, loss", "GroupDRO"}
FACTORS_ALIKE = {"GradNorm", "BalancedPiKE, conceptual"}
# These give weights whatever is there, as they are told to.
TOLD = {"Fixed", "Function", "Scheduled", "Scheduled, steps"}


@dataclass(frozen=True)
class Course:
    """Thirty steps and who is there in each of them; someone with a weight of its own always is."""

    seed: int

    def active(self) -> np.ndarray:
        random = np.random.default_rng(self.seed)
        rows = [random.random(len(OWN)) < 0.7]
        for _ in range(NUM_STEPS):
            rows.append(np.where(random.random(len(OWN)) < 0.8, rows[-1], ~rows[-1]))
        table = np.array(rows)
        nobody = ~(table & (OWN > 0)).any(axis=1)
        table[nobody, random.integers(0, 2) * 2] = True
        return table

    def mixture(self) -> Mixture:
        return Mixture(NAMES, SIZES, OWN.copy(), active=self.active()[0])

    def steps(self, policy: Policy, decision: Decision) -> Iterator[Any]:
        """What each step showed, and what is decided for the next one."""
        for step in range(1, NUM_STEPS + 1):
            seen = self.observation(step, decision, policy.unit)
            decision = policy.update(seen)
            yield seen, decision

    def observation(self, step: int, decision: Decision, unit: str = "samples") -> Observation:
        random = np.random.default_rng([self.seed, step])
        was_there, active = self.active()[step - 1 : step + 1]
        weights = decision.weights / decision.weights.sum()
        drawn = np.where(was_there, weights, 0.0)
        shares = drawn / drawn.sum() if drawn.any() else drawn
        counts = np.round(BATCH_SIZE * shares).astype(np.int64)
        losses, evaluation = np.where(counts > 0, random.random(len(OWN)) * 3, np.nan), random.random(len(OWN))
        shown: dict[str, Any] = {"step": step, "progress": step / NUM_STEPS, "weights": weights, "shares": shares}
        shown |= {"losses": losses, "active": active, "batch_size": BATCH_SIZE}
        if step % 3 == 0:
            shown["evaluation_losses"] = evaluation
        if unit == "tokens":
            shown["tokens_per_sample"] = np.array([9.0, 3.0, 70.0, 1.0])
        missing, vectors = counts < 1, random.normal(size=(len(OWN), 3))
        gram = vectors @ vectors.T
        norms, variance = np.diagonal(gram) - 0.2, random.random(len(OWN)) * 5
        gram[missing], gram[:, missing] = np.nan, np.nan
        norms, variance = (np.where(counts < 2, np.nan, values) for values in (norms, variance))
        return measured(norms, variance, counts, gram, **shown)


seeds = st.integers(0, 10_000)


@pytest.mark.parametrize("name", MAKERS)
@settings(max_examples=2)
@given(seed=seeds, unit=st.sampled_from(["samples", "tokens"]))
def test_weights_and_factors_keep_their_scale(name: str, seed: int, unit: str) -> None:
    # Sizes of data sets, by which UniMax goes, are in samples.
    policy, course = MAKERS[name](**({} if name.startswith("UniMax") else {"unit": unit})), Course(seed)
    first = policy.start(course.mixture())
    by_own = name in BY_OWN_WEIGHTS or (name.partition(",")[0] in BY_OWN_WEIGHTS and name != "Fixed")
    assert not by_own or first.weights[1] == 0.0
    for seen, decision in course.steps(policy, first):
        check(name, seen, decision, by_own)


def check(name: str, seen: Observation, decision: Decision, by_own: bool) -> None:
    weights, factors = decision.weights, decision.loss_weights
    assert weights.min() >= 0.0
    assert weights.sum() == pytest.approx(1.0)
    assert name in TOLD or weights[seen.is_active].sum() > 0.0
    assert not by_own or weights[1] == 0.0
    if factors is None:
        return
    assert np.isfinite(factors).all()
    assert factors.min() >= 0.0
    counts = seen.is_active & (OWN > 0)
    if name in FACTORS_BY_OWN:
        assert np.average(factors[counts], weights=OWN[counts]) == pytest.approx(1.0)
    elif name in FACTORS_ALIKE:
        assert factors[counts].mean() == pytest.approx(1.0)


WRAPPED: dict[str, Callable[[Policy], Policy]] = {
    "Floor": lambda policy: Floor(policy, 0.1),
    "Smoothed": lambda policy: Smoothed(policy, 0.7),
    "Hold": lambda policy: Hold(policy, 4),
    "TrustRegion": lambda policy: TrustRegion(policy, 0.2),
    "two": lambda policy: Floor(TrustRegion(policy, 0.2), 0.1),
}


@pytest.mark.parametrize("wrap", WRAPPED)
@settings(max_examples=4)
@given(inner=st.sampled_from(["GroupDRO", "CoBa, loss"]), seed=seeds)
def test_wrappers_leave_the_loss_its_scale_too(wrap: str, inner: str, seed: int) -> None:
    policy, course = WRAPPED[wrap](MAKERS[inner]()), Course(seed)
    for seen, later in course.steps(policy, policy.start(course.mixture())):
        active = seen.is_active & (later.weights > 0)
        if later.loss_weights is not None and active.any():
            assert np.average(later.loss_weights[active], weights=later.weights[active]) == pytest.approx(1.0)
