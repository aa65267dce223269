"""What measures the requests of policy and schedule: one table from requests to hooks."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from transformers import Trainer

from mixer.measurements import (
    BUILT_IN,
    Alignment,
    Branches,
    ExcessLoss,
    GradientNoise,
    Gradients,
    Kind,
    LossAfter,
    UpdateNorm,
    asked,
)
from mixer.trainer.hooks import StepHook
from mixer.trainer.losses import StreamLosses
from mixer.trainer.observers.branches import BranchProbe
from mixer.trainer.observers.gradient_options import check_exact, exact_refusal, resolve_probing
from mixer.trainer.observers.gradients import NoiseBetweenRanks, RunProbe, UpdateNormHook
from mixer.trainer.observers.reference import ExcessLossHook, LossAfterHook, ReferenceModel, needed_reference
from mixer.trainer.observers.targets import TargetProbe
from mixer.trainer.run import Run, Steering
from mixer.trainer.side_runs import SideRuns
from mixer.trainer.step import was_skipped
from mixer.trainer.targets import TargetRows
from mixer.trainer.trl import with_fused_head


class Means(NamedTuple):
    """What hooks measure with.

    Attributes:
        trainer: The trainer.
        run: The run.
        runs: Runs of the model outside of training.
        losses: The losses of the streams.
        most_samples: Maximum samples of a micro-batch.
        target_rows: Returns the rows of each target of the objective.
    """

    trainer: Trainer
    run: Run
    runs: SideRuns
    losses: StreamLosses
    most_samples: int
    target_rows: Callable[[Steering], list[TargetRows]]


def new_hooks(means: Means) -> list[StepHook]:
    """Makes the hooks that measure what policy and schedule ask for."""
    made = (make(means, asked(means.run.options.needs, kind)) for kind, make in _HOOKS.items())
    return [hook for hook in made if hook is not None]


def check_measured(run: Run, hooks: Sequence[StepHook]) -> None:
    """Refuses requests that nothing measures.

    Args:
        run: The run.
        hooks: All hooks of the run, those of the user too.

    Raises:
        ValueError: With the request.
    """
    known = {*BUILT_IN, *(kind for hook in hooks for kind in hook.measures)}
    if unknown := [need for need in run.options.needs if type(need) not in known]:
        raise ValueError(
            f"mixing={run.options.policy.name} or its batch_size needs {unknown[0]!r}, which nothing measures: pass a "
            f"hook with measures = ({type(unknown[0]).__name__},) in methods=[...]."
        )


def _gradients(means: Means, _requests: list[Any]) -> StepHook | None:
    run, args, options = means.run, means.trainer.args, means.run.options
    policy = options.policy
    if (resolved := resolve_probing(options.probe, policy, options.mixture.schedule, args.world_size)) is None:
        return None
    max_tokens = options.config.max_tokens_per_micro_batch
    check_exact(resolved[0], args, run.mixing.size, means.most_samples, max_tokens, policy, list(run.streams))
    if resolved[0].needs_one_micro_batch and run.needs.one_stream_each and len(run.streams) > 1:
        raise exact_refusal("streams that differ have micro-batches of their own")
    probe = RunProbe(*resolved, [stream.name for stream in run.streams], args.world_size, args.seed, means.runs)
    probe.check(means.losses.own_model)
    run.needs.one_stream_each |= probe.options.homogeneous
    return probe


def _noise(means: Means, requests: list[Any]) -> StepHook | None:
    args = means.trainer.args
    if not requests or args.world_size == 1:  # where the gradients show it
        return None
    return NoiseBetweenRanks(means.runs, means.run.rank_sync, args.world_size, args.device)


def _excess_loss(means: Means, requests: list[Any]) -> StepHook | None:
    trainer, run, options = means.trainer, means.run, means.run.options
    reference = needed_reference(options.reference_model, trainer.model, options.policy, bool(requests))
    if (reference := with_fused_head(reference, trainer.model)) is None:
        return None
    run.needs.item_losses = True
    own = {"autocast": trainer.accelerator.autocast, "new_reader": means.losses.new_reader}
    new = partial(ReferenceModel, runs=means.runs, device=trainer.args.device, **own)
    return ExcessLossHook(reference, len(run.streams), run.rank_sync, new, means.losses.sum_dtype)


def _loss_after(means: Means, requests: list[Any]) -> StepHook | None:
    if not requests:
        return None
    # A trial has an accelerator of its own.
    skipped = partial(was_skipped, means.trainer, means.run.step)
    return LossAfterHook(means.runs, means.run.rank_sync, skipped, means.trainer.args.device, means.losses.sum_dtype)


def _alignment(means: Means, requests: list[Any]) -> StepHook | None:
    if not requests:
        return None
    steering, args = means.run.options.aim, means.trainer.args
    ranks, request = (args.process_index, args.world_size), Alignment.merged(requests)
    return TargetProbe(means.target_rows(steering), means.run, means.runs, *ranks, request, steering.objective)


def _branches(means: Means, requests: list[Any]) -> StepHook | None:
    if not requests:
        return None
    if len(set(requests)) > 1:
        raise ValueError(f"needs: a run is branched in one way, but these differ: {requests}.")
    rows = means.target_rows(means.run.options.aim)
    return BranchProbe(rows, means.run, means.runs, means.trainer, requests[0])


# In the order in which they are called.
_HOOKS: dict[Kind, Callable[[Means, list[Any]], StepHook | None]] = {
    Gradients: _gradients,
    GradientNoise: _noise,
    UpdateNorm: lambda _, requests: UpdateNormHook() if requests else None,
    ExcessLoss: _excess_loss,
    LossAfter: _loss_after,
    Alignment: _alignment,
    Branches: _branches,
}
