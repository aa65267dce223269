"""What measures the requests of policy and schedule: one table from requests to hooks."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from transformers import TrainingArguments

import mixer.measurements as measurements
from mixer.measure.auxiliary_passes import AuxiliaryPasses
from mixer.measure.stream_gradients import NoiseBetweenRanks, RunProbe
from mixer.measure.target_gradients import TargetProbe
from mixer.measure.target_rows import TargetRows
from mixer.mixture.controller import Mixing
from mixer.run.hooks import StepHook
from mixer.run.plan import RunPlan
from mixer.run.probing import exact_refusal


def new_hooks(passes: AuxiliaryPasses) -> list[StepHook]:
    """Makes the hooks that measure what policy and schedule ask for."""
    made = (make(passes, measurements.asked(passes.plan.needs, kind)) for kind, make in _HOOKS.items())
    return [hook for hook in made if hook is not None]


def check_measured(plan: RunPlan, hooks: Sequence[StepHook]) -> None:
    """Refuses requests that nothing measures.

    Args:
        plan: The plan of the run.
        hooks: All hooks of the run, those of the user too.

    Raises:
        ValueError: With the request.
    """
    known = {*measurements.BUILT_IN, *(kind for hook in hooks for kind in hook.measures)}
    if unknown := [need for need in plan.needs if type(need) not in known]:
        raise ValueError(
            f"mixing={plan.policy.name} or its batch_size needs {unknown[0]!r}, which nothing measures: pass a "
            f"hook with measures = ({type(unknown[0]).__name__},) in methods=[...]."
        )


def _gradients(passes: AuxiliaryPasses, _requests: list[Any]) -> StepHook | None:
    if passes.plan.probed is None:
        return None
    _check_exact(passes.plan, passes.trainer.args, passes.run.mixing)
    probe = RunProbe(passes.plan.probed, passes)
    probe.check(passes.losses.own_model)
    return probe


def _check_exact(plan: RunPlan, args: TrainingArguments, mixing: Mixing) -> None:
    """Refuses an exact probe of steps with several micro-batches or ranks.

    Args:
        plan: The plan of the run, which measures gradients.
        args: The training arguments.
        mixing: The controller of the mixture.

    Raises:
        ValueError: If there will be several, or may be.
    """
    size, cap = mixing.size, plan.most_samples
    if plan.probed is None or not plan.probed.options.needs_one_micro_batch:
        return
    largest = size.value if size.is_constant else size.schedule.limits.maximum
    weighed = [stream.name for stream in plan.streams if stream.loss_weight != 1]
    name = "per_device_train_batch_size" if cap == args.train_batch_size else "max_samples_per_micro_batch"
    may_grow = f"batch_size={size.schedule.name} may grow beyond {name}={cap}; set maximum={cap}"
    max_tokens, is_one = plan.config.max_tokens_per_micro_batch, len(plan.streams) == 1
    reasons = {
        f"there are {args.world_size} ranks": args.world_size > 1,
        "homogeneous=True makes at least one micro-batch per stream": plan.probed.options.homogeneous,
        "max_tokens_per_micro_batch splits a step by the lengths of its samples": max_tokens is not None,
        f"{may_grow} if the schedule has it": largest is None,
        f"steps have up to {largest} samples and {name}={cap}": (largest or 0) > cap,
        f"loss_weight of {weighed} needs micro-batches of one stream each": bool(weighed),
        "streams that differ have micro-batches of their own": plan.streams_differ and not is_one,
    }
    for reason in (reason for reason, applies in reasons.items() if applies):
        raise exact_refusal(reason)
    if not is_one and mixing.decision.loss_weights is not None:
        raise exact_refusal(f"mixing={plan.policy.name} weights losses, which needs micro-batches of one stream each")


def _noise(passes: AuxiliaryPasses, requests: list[Any]) -> StepHook | None:
    # One rank's noise shows in the streams' gradients.
    return NoiseBetweenRanks(passes) if requests and passes.ranks.world_size > 1 else None


def _alignment(passes: AuxiliaryPasses, requests: list[Any]) -> StepHook | None:
    if not requests:
        return None
    splits, request = passes.plan.aim, measurements.Alignment.merged(requests)
    test = _targets(passes, splits.test) if request.test_losses and splits.test else []
    return TargetProbe(_targets(passes, splits.rows), passes, request, splits.objective, test)


def _targets(passes: AuxiliaryPasses, rows: Mapping[str, Any]) -> list[TargetRows]:
    """Returns the rows of each target of the objective, from data sets by name."""
    return [TargetRows(name, rows[name], passes) for name in passes.plan.aim.objective.names]


# In the order in which they are called.
_HOOKS: dict[measurements.Kind, Callable[[AuxiliaryPasses, list[Any]], StepHook | None]] = {
    measurements.Gradients: _gradients,
    measurements.GradientNoise: _noise,
    measurements.Alignment: _alignment,
}
