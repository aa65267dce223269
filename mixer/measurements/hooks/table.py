"""All hooks that measure, in the order in which they are called."""

from collections.abc import Sequence

from mixer.measurements import BUILT_IN
from mixer.measurements.hooks import (
    evaluation_loss,
    gradient_norm,
    learning_rate,
    loss,
    rank_noise,
    stream_gradients,
    target_gradients,
)
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.run.hooks import Observer
from mixer.run.plan import RunPlan

_NEW_HOOK = (
    loss.new_hook,
    gradient_norm.new_hook,
    learning_rate.new_hook,
    evaluation_loss.new_hook,
    stream_gradients.new_hook,
    rank_noise.new_hook,
    target_gradients.new_hook,
)


def new_hooks(passes: AuxiliaryPasses) -> list[Observer]:
    """Makes the hooks that measure what policy and schedule ask for."""
    return [hook for new_hook in _NEW_HOOK if (hook := new_hook(passes)) is not None]


def check_measured(plan: RunPlan, hooks: Sequence[Observer]) -> None:
    """Refuses requests that nothing measures.

    Args:
        plan: The plan of the run.
        hooks: All hooks of the run, those of the user too.

    Raises:
        ValueError: With the request.
    """
    known = {*BUILT_IN, *(kind for hook in hooks for kind in hook.measures)}
    if unknown := [need for need in plan.needs if type(need) not in known]:
        raise ValueError(
            f"mixing={plan.policy.name} or its batch_size needs {unknown[0]!r}, which nothing measures: pass a "
            f"hook with measures = ({type(unknown[0]).__name__},) in methods=[...]."
        )
