"""Rules that need what only training shows, held at their start in a simulated run."""

from mixer.measurements import LearningRate, Needs, names_of
from mixer.mixture.controller import Mixing
from mixer.utils.text import listed


def hold_rules(mixing: Mixing) -> str:
    """Holds policy and schedule at what they start with, where they need measurements.

    Args:
        mixing: The controller; its adaptive rules are made static.

    Returns:
        A sentence that says so.
    """
    policy, schedule = mixing.policy, mixing.schedule
    rules = {f"mixing={policy.name}": policy.needs, f"batch_size={schedule.name}": schedule.needs}
    kept = dict(zip(rules, ("the weights of its first step", "its first size"), strict=True))
    held = [
        f"{rule} is assumed to keep {kept[rule]} in the whole run (it goes by {listed(names_of(needs))}, which a "
        "trained run measures)"
        for rule, own in rules.items()
        if (needs := _measured(own))
    ]
    if _measured(policy.needs):
        policy.hold()
    if _measured(schedule.needs):
        schedule.is_constant = True
    if held:
        return f"Held at its start, as only training shows the losses: {'; '.join(held)}."
    return "The plans need no losses: they are those of the trained run."


def _measured(needs: Needs) -> Needs:
    """Returns the requests that only training fulfils: the learning rate is planned."""
    return tuple(need for need in needs if not isinstance(need, LearningRate))
