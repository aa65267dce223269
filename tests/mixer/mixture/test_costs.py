from inspect import signature
from typing import Any

import pytest

from mixer.measurements import BY_NAME, EvaluationLoss, Gradients, Measurement
from mixer.measurements.gradients import STEP_WITH_GRADIENTS, STEP_WITH_VARIANCES
from mixer.policies import BalancedPiKE, GroupDRO, LossChange, PiKE, Policy, Uniform, policy_classes
from mixer.policies.registry import cost_of
from mixer.schedules import NoiseScale, Schedule, Seesaw, schedule_classes

GRADIENTS, VARIANCES = (f"takes {factor:.2f} times as long" for factor in (STEP_WITH_GRADIENTS, STEP_WITH_VARIANCES))


def needing(*needs: Measurement[Any]) -> type[Policy]:
    return type("Needing", (Uniform,), {"needs": needs})


@pytest.mark.parametrize(
    ("rule", "cost"),
    [
        *[(rule, "nothing") for rule in (Uniform, LossChange, Seesaw)],
        (needing(EvaluationLoss()), "the evaluations"),
        (needing(Gradients()), f"each step {GRADIENTS}"),
        (needing(Gradients(variance=True)), f"each step {VARIANCES}"),
        (needing(EvaluationLoss(), Gradients(interval_steps=7)), f"the evaluations, 1 step in 7 {GRADIENTS}"),
        (GroupDRO, "micro-batches of one stream each"),
        (PiKE, f"1 step in 20 {VARIANCES}"),
        (BalancedPiKE, cost_of(PiKE)),  # arguments that are passed on have the same default
    ],
)
def test_in_words(rule: type[Policy] | type[Schedule], cost: str) -> None:
    assert cost_of(rule) == cost
    assert VARIANCES in cost_of(NoiseScale)


def test_every_rule_and_word_has_a_cost() -> None:
    for rule in [*policy_classes().values(), *schedule_classes().values()]:
        assert cost_of(rule)
    for kind in BY_NAME.values():
        assert cost_of(needing(kind()))
    for policy in policy_classes().values():  # who weighs losses by default says what that takes
        acts_on = signature(policy).parameters.get("acts_on")
        assert ("one stream each" in cost_of(policy)) == (acts_on is not None and acts_on.default == "loss")
