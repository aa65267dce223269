"""What it costs to observe what a policy or a schedule needs."""

import inspect

from mixer.policies import Policy
from mixer.schedules import Schedule

# Time of a step that measures three streams over that of a plain one, by benchmarks/probe.py; with eight up to 1.08 and
# 1.13.
STEP_WITH_GRADIENTS = 1.05
STEP_WITH_VARIANCES = 1.11

# Read off the forward and the optimizer step that are done anyway, or known without either.
_FREE = frozenset({"loss", "gradient_norm", "learning_rate", "tokens"})
_MEASURED = {
    "gradient": STEP_WITH_GRADIENTS,
    "gradient_variance": STEP_WITH_VARIANCES,
    "gradient_noise": STEP_WITH_VARIANCES,
}
_IN_WORDS = {
    "evaluation_loss": "the evaluations",
    "excess_loss": "a forward of the reference model each step",
    "loss_after": "a second forward each step",
    "update_norm": "a copy of the trained weights, read and written each step",
}


def cost_of(rule: type[Policy] | type[Schedule]) -> str:
    """Says what a rule and its needs cost, with its default arguments.

    Args:
        rule: The class of a policy or a schedule.

    Returns:
        The cost in words.

    Raises:
        KeyError: If the rule needs something of which no cost is known.
    """
    needs = rule.needs - _FREE
    costs = [cost for need, cost in _IN_WORDS.items() if need in needs]
    factors = [_MEASURED[name] for name in needs - _IN_WORDS.keys()]
    if factors:
        interval = _interval(rule)
        steps = "each step" if interval == 1 else f"1 step in {interval}"
        # Several ranks have the noise of the gradient from what theirs differ by.
        where = " on a single rank" if needs == {"gradient_noise"} else ""
        costs.append(f"{steps} takes {max(factors):.2f} times as long{where}")
    if issubclass(rule, Policy) and rule.own_cost:
        costs.append(rule.own_cost)
    return ", ".join(costs) or "nothing"


def _interval(rule: type[Policy] | type[Schedule]) -> int:
    """Steps from a measurement to the next, unless something else is asked for."""
    # Arguments may be passed on to a class above.
    for owner in (owner for owner in rule.__mro__ if issubclass(owner, Policy | Schedule)):
        argument = inspect.signature(owner).parameters.get("interval_steps")
        if argument is not None and isinstance(argument.default, int):
            return argument.default
    return int(getattr(rule, "interval_steps", 1))
