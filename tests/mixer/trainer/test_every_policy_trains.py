"""Every policy in runs of the trainer: what it needs is measured and reaches it, also beside aggregated gradients."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mixer
from mixer import Decision, MixingTrainer, Observation, Policy
from mixer.measurements import required
from mixer.policies.registry import built_in_policies
from tests.mixer.comparing import Tagger, build, streams

LOSSES = {"a": 1.0, "b": 0.9, "c": 0.8}
# Arguments with which so few steps change something.
MAKERS: dict[str, Callable[[], Policy]] = {
    "UniMax": lambda: mixer.UniMax(45, max_epochs=2.0),
    "Scheduled": lambda: mixer.Scheduled([(0.0, {"a": 1, "b": 1, "c": 1}), (1.0, {"a": 3, "b": 1, "c": 1})]),
    "LossChange": lambda: mixer.LossChange(num_warmup_observations=1),
    "ODM": lambda: mixer.ODM("code", num_warmup_steps=0),
    "ADO": lambda: mixer.ADO("paper", 2, 1, 0),
    "TargetLoss": lambda: mixer.TargetLoss(LOSSES),
    "PiKE": lambda: mixer.PiKE(1, min_samples=2),
    "BalancedPiKE": lambda: mixer.BalancedPiKE(interval_steps=1, min_samples=2),
    "CoBa": lambda: mixer.CoBa(2, num_warmup_evaluations=2),
    "DWA": lambda: mixer.DWA(0.1, 1),
    "DoGE": lambda: mixer.DoGE(interval_steps=1),
    "GRAPE": lambda: mixer.GRAPE(interval_steps=1),
    "RegularizedBalance": lambda: mixer.RegularizedBalance(interval_steps=1),
    "GradNorm": lambda: mixer.GradNorm(interval_steps=1, acts_on="sampling"),
    "DGA": lambda: mixer.DGA(interval_steps=1),
    "MarginalValue": lambda: mixer.MarginalValue(interval_steps=1),
    "Safeguard": lambda: mixer.Safeguard(mixer.DGA(interval_steps=1)),
    "OverfitGuard": lambda: mixer.OverfitGuard(mixer.DWA(0.1, 1)),
    "Function": lambda: mixer.Function(lambda step, weights: [1 + step, 1, 1]),
    "Floor": lambda: mixer.Floor(mixer.GroupDRO(acts_on="sampling"), 0.1),
    "Smoothed": lambda: mixer.Smoothed(mixer.DWA(0.1, 1)),
    "WarmUp": lambda: mixer.WarmUp(mixer.DWA(0.1, 1), 2),
    "Hold": lambda: mixer.Hold(mixer.DWA(0.1, 1), 2),
    "TrustRegion": lambda: mixer.TrustRegion(mixer.DWA(0.1, 1), 0.01),
}
STAY = {"Uniform", "Proportional", "Temperature", "UniMax", "Fixed", "Safeguard"}  # or have no evidence yet
ON_LOSSES = {"GroupDRO"}  # sampled by the streams' own weights


def train(folder: Path, name: str, **changes: Any) -> tuple[MixingTrainer, list[Observation], list[Decision]]:
    policy = MAKERS[name]() if name in MAKERS else built_in_policies()[name]()
    seen: list[Observation] = []
    decisions: list[Decision] = []
    update = policy.update

    def noted(observation: Observation) -> Decision:
        seen.append(observation)
        decisions.append(update(observation))
        return decisions[-1]

    policy.update = noted  # type: ignore[method-assign]
    args: dict[str, Any] = {"max_steps": 6, "learning_rate": 0.05}
    if "evaluations" in required(policy.needs):
        args |= {"eval_strategy": "steps", "eval_steps": 1}
    if "objective" in required(policy.needs):
        changes = {"objective": ["a"], **changes}
    trainer = build(folder, policy, eval_dataset=streams(), model=Tagger(), args=args, **changes)
    trainer.train()
    return trainer, seen, decisions


AGGREGATED = ["DoGE", "GradNorm", "GroupDRO"]
BESIDE = [pytest.param(name, "pcgrad", marks=pytest.mark.full if name != "DoGE" else ()) for name in AGGREGATED]


# Those by rewards are tried with GRPO.
NAMES = sorted(
    name for name, kind in built_in_policies().items() if "generated completions" not in required(kind.needs)
)


@pytest.mark.parametrize(("name", "conflict"), [*((name, None) for name in NAMES), *BESIDE])
def test_it_sees_what_it_needs_and_moves_the_mixture(tmp_path: Path, name: str, conflict: str | None) -> None:
    if conflict is not None:
        pytest.importorskip("torchjd")
    trainer, seen, decisions = train(tmp_path, name, conflict=conflict)
    policy = trainer.mixing.policy
    for kind in {type(need) for need in policy.needs}:
        found = [observation[kind] for observation in seen]
        assert any(result is not None for result in found)
    if name not in STAY:
        assert len(decisions) == 6
        found = [decision.loss_weights if name in ON_LOSSES else decision.weights for decision in decisions]
        assert np.ptp(np.array(found), axis=0).max() > 1e-4
