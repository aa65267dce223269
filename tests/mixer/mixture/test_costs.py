from inspect import signature

import pytest

from mixer.mixture.resolve import OBSERVABLE, OBSERVABLE_BY_SCHEDULE
from mixer.policies import BalancedPiKE, DoReMi, GroupDRO, LossChange, PiKE, Policy, Uniform, policy_classes
from mixer.policies.registry import STEP_WITH_GRADIENTS, STEP_WITH_VARIANCES, cost_of
from mixer.schedules import NoiseScale, Seesaw, schedule_classes


def needing(*words: str, interval: int = 1) -> type[Policy]:
    return type("Needing", (Uniform,), {"needs": frozenset(words), "interval_steps": interval})


@pytest.mark.parametrize(
    ("rule", "cost"),
    [
        (Uniform, "nothing"),
        (LossChange, "nothing"),
        (Seesaw, "nothing"),
        (needing("evaluation_loss"), "the evaluations"),
        (needing("gradient"), f"each step takes {STEP_WITH_GRADIENTS:.2f} times as long"),
        (needing("gradient", interval=7), f"1 step in 7 takes {STEP_WITH_GRADIENTS:.2f} times as long"),
        (needing("gradient", "gradient_variance"), f"each step takes {STEP_WITH_VARIANCES:.2f} times as long"),
        (
            needing("gradient", "evaluation_loss", interval=7),
            f"the evaluations, 1 step in 7 takes {STEP_WITH_GRADIENTS:.2f} times as long",
        ),
        (GroupDRO, "micro-batches of one stream each"),
        (DoReMi, "a forward of the reference model each step, micro-batches of one stream each"),
        (PiKE, f"1 step in 20 takes {STEP_WITH_VARIANCES:.2f} times as long"),
    ],
)
def test_in_words(rule: type[Policy], cost: str) -> None:
    assert cost_of(rule) == cost


def test_arguments_that_are_passed_on_have_the_same_default() -> None:
    assert cost_of(BalancedPiKE) == cost_of(PiKE)


@pytest.mark.parametrize("name", policy_classes())
def test_who_weighs_losses_by_default_says_what_that_takes(name: str) -> None:
    acts_on = signature(policy_classes()[name]).parameters.get("acts_on")
    assert ("one stream each" in cost_of(policy_classes()[name])) == (acts_on is not None and acts_on.default == "loss")


def test_noise_is_measured() -> None:
    assert f"takes {STEP_WITH_VARIANCES:.2f} times as long" in cost_of(NoiseScale)


def test_every_rule_and_word_has_a_cost() -> None:
    for rule in [*policy_classes().values(), *schedule_classes().values()]:
        assert cost_of(rule)
    for word in OBSERVABLE | OBSERVABLE_BY_SCHEDULE:
        assert cost_of(needing(word))


def test_what_has_no_known_cost_is_not_called_free() -> None:
    with pytest.raises(KeyError, match="horoscope"):
        cost_of(needing("horoscope"))
