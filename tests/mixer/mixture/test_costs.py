from inspect import signature

import pytest

from mixer.mixture.resolve import OBSERVABLE, OBSERVABLE_BY_SCHEDULE
from mixer.policies import BalancedPiKE, DoReMi, GroupDRO, LossChange, PiKE, Policy, Uniform, policy_classes
from mixer.policies.registry import STEP_WITH_GRADIENTS, STEP_WITH_VARIANCES, cost_of
from mixer.schedules import NoiseScale, Schedule, Seesaw, schedule_classes

GRADIENTS, VARIANCES = (f"takes {factor:.2f} times as long" for factor in (STEP_WITH_GRADIENTS, STEP_WITH_VARIANCES))


def needing(*words: str, interval: int = 1) -> type[Policy]:
    return type("Needing", (Uniform,), {"needs": frozenset(words), "interval_steps": interval})


@pytest.mark.parametrize(
    ("rule", "cost"),
    [
        *[(rule, "nothing") for rule in (Uniform, LossChange, Seesaw)],
        (needing("evaluation_loss"), "the evaluations"),
        (needing("gradient"), f"each step {GRADIENTS}"),
        (needing("gradient", "gradient_variance"), f"each step {VARIANCES}"),
        (needing("gradient", "evaluation_loss", interval=7), f"the evaluations, 1 step in 7 {GRADIENTS}"),
        (GroupDRO, "micro-batches of one stream each"),
        (DoReMi, "a forward of the reference model each step, micro-batches of one stream each"),
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
    for word in OBSERVABLE | OBSERVABLE_BY_SCHEDULE:
        assert cost_of(needing(word))
    for policy in policy_classes().values():  # who weighs losses by default says what that takes
        acts_on = signature(policy).parameters.get("acts_on")
        assert ("one stream each" in cost_of(policy)) == (acts_on is not None and acts_on.default == "loss")


def test_what_has_no_known_cost_is_not_called_free() -> None:
    with pytest.raises(KeyError, match="horoscope"):
        cost_of(needing("horoscope"))
