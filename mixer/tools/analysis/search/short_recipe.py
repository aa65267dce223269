"""Short runs of a recipe: the passes and the limits of the whole run, with fixed weights."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jsonargparse import Namespace

from mixer.measurements import EvaluationLoss, asked
from mixer.mixture.clock import Clock
from mixer.mixture.resolve import amounts_of
from mixer.mixture.stream import Stream
from mixer.policies.contract import Policy, Unit
from mixer.policies.shared.wrapper import Wrapper
from mixer.schedules import Schedule
from mixer.utils.recorded_arguments import as_data
from mixer.utils.text import listed, safe_name

_AMOUNTS = ("max_samples", "max_tokens", "max_labels")
_NUM_EVALUATIONS = 10  # of a run whose recipe has no number of steps between them
_NEVER = 10**9  # steps; the Trainer evaluates at the end of a run anyway
_COUNTED = ("samples", "tokens", "labels", "steps")  # units of a schedule's positions that grow with the run


@dataclass(frozen=True)
class Varied:
    """What a search varies: the weights inside of what limits a mixture.

    Args:
        weights: The weights that the recipe starts with there, by stream.
        unit: Their unit.
        limits: Names of the policies around them, which are in force in short runs.
        others: Names of the policies that are not.
    """

    weights: Mapping[str, float]
    unit: Unit
    limits: list[str] = field(default_factory=list)
    others: list[str] = field(default_factory=list)


def varied(policy: Policy, weights: Mapping[str, float]) -> Varied:
    """Finds what a search varies in a recipe's policy.

    Args:
        policy: The policy, after its start.
        weights: Its first weights, by stream.
    """
    found = Varied(dict(weights), policy.unit)
    while (inner := _inside(policy)) is not None:
        (found.limits if policy.limits_mixture else found.others).append(type(policy).__name__)
        names = list(found.weights)
        seen = names if inner.streams is None else [names[number] for number in inner.streams]
        own = dict(zip(seen, (inner.decision.weights / inner.decision.weights.sum()).tolist(), strict=True))
        found, policy = Varied(own, found.unit, found.limits, found.others), inner.policy
    if not policy.is_static:
        found.others.append(type(policy).__name__)
    return found


def with_weights(policy: Policy, weights: Mapping[str, float]) -> Any:
    """Gives the option `mixing` of a short run: fixed weights inside of the policies that limit the recipe's mixture.

    Args:
        policy: The recipe's policy, after its start.
        weights: By stream, in its unit.
    """
    limits = _limits(policy)
    if not limits and policy.unit == "samples":
        return dict(weights)
    made: Any = {"class_path": "mixer.Fixed", "init_args": {"weights": dict(weights), "unit": policy.unit}}
    for data in reversed(limits):
        made = {**data, "init_args": {**data["init_args"], "policy": made}}
    return made


def weights_in(mixing: Any) -> Mapping[str, float]:
    """Reads the weights of what `with_weights` gave."""
    while "init_args" in mixing:
        arguments = mixing["init_args"]
        mixing = arguments["policy"] if "policy" in arguments else arguments["weights"]
    found: Mapping[str, float] = mixing
    return found


def _limits(policy: Policy) -> list[Any]:
    """Lists the policies that limit the mixture, from the outside, as plain data."""
    found = []
    while (inner := _inside(policy)) is not None:
        found += [as_data(policy)] if policy.limits_mixture else []
        policy = inner.policy
    return found


def _inside(policy: Policy) -> Any:
    return policy.wrapped() if policy.limits_mixture or isinstance(policy, Wrapper) else None


def shorten(
    config: Any,
    streams: Sequence[Stream],
    policy: Policy,
    steps: int,
    max_steps: int,
    budget: Mapping[str, int] | None = None,
) -> list[str]:
    """Makes a recipe's run shorter: each source keeps that share of its rows, so that it is repeated as often.

    Rows are drawn alike in all runs, before the shuffling, and evaluation and development rows are whole. What a recipe
    counts over the run is cut too: warm-up, phases of the learning rate and of the batch size, the streams' amounts,
    the steps between evaluations if a policy goes by them. What it counts by progress, such as `enters_at`, stays.

    Args:
        config: The recipe's fields; changed.
        streams: The streams that it makes.
        policy: The recipe's policy, after its start.
        steps: Steps of the short run.
        max_steps: Steps of the whole run.
        budget: The whole run's limits by unit, see `limits_in_data`; `None` counts both runs in steps.

    Returns:
        What is not as in the whole run, in sentences.
    """
    share = steps / max_steps
    _shorten_training(config.training, share, steps, _evaluates(policy))
    if budget is not None:
        config.training.max_steps = -1
        if not _evaluates(policy):
            config.training.eval_steps = _NEVER
    config.training.budget_samples = config.training.budget_tokens = None
    config.budget = Namespace(cut_limits(budget, share)) if budget else None  # type: ignore[no-untyped-call]
    by_name = {stream.name: stream for stream in streams}
    for name, own in config.streams.items():
        own["rows_share"] = own["rows_share"] * (share if _has_rows(own, by_name.get(safe_name(name))) else 1.0)
        for amount in _AMOUNTS:
            own[amount] = None if own[amount] is None else _cut(own[amount], share)
    return _differences(streams, share)


def cut_limits(limits: Mapping[str, int], share: float) -> dict[str, int]:
    """Cuts the limits of a run, by unit, to a share of it."""
    return {unit: _cut(limit, share) for unit, limit in limits.items()}


def _cut(amount: int, share: float) -> int:
    return max(1, round(share * amount))


def limits_in_data(clock: Clock, streams: Sequence[Stream]) -> dict[str, int] | None:
    """Gives the limits of a run that is counted in data, because its budget is, or as its batch size changes.

    Args:
        clock: The clock of the run.
        streams: Its streams.

    Returns:
        The limits by unit, epochs in samples; empty if only the streams' amounts limit the run, and `None` if the run
        is counted in steps.
    """
    if clock.is_step_based:
        return None
    amounts = amounts_of(streams)
    if amounts is not None and amounts.budget == clock.budget:
        return {}
    limits = dict(clock.budget.limits)
    if (epochs := limits.pop("epochs", None)) is not None:
        samples = math.ceil(epochs * clock.epoch_size)
        limits["samples"] = min(samples, limits.get("samples", samples))
    return limits


def shorten_schedule(batch_size: Any, schedule: Schedule, share: float) -> None:
    """Cuts what a schedule of the batch size counts over the run; what follows epochs or progress stays as it is.

    Args:
        batch_size: The recipe's field, a class with its arguments; changed.
        schedule: The schedule that it makes.
        share: Share of the run.
    """
    if schedule.unit not in _COUNTED:
        return
    arguments = batch_size["init_args"]
    for name in schedule.positions:
        if name in arguments:
            arguments[name] = _nearer(arguments[name], share)


def _nearer(positions: Any, share: float) -> Any:
    """Multiplies a position, some of them, or those of pairs and of a mapping's keys."""
    if isinstance(positions, Mapping):
        return {share * float(position): value for position, value in positions.items()}
    if isinstance(positions, Sequence):
        return [[share * own[0], own[1]] if isinstance(own, Sequence) else share * own for own in positions]
    return None if positions is None else share * positions


def _has_rows(recipe: Any, stream: Stream | None) -> bool:
    """Whether a stream's rows are counted; there is none of the recipe's name where each value of a column is one."""
    if stream is None:
        return not recipe["data"]["streaming"]
    return not (stream.is_iterable or stream.is_memory)


def _shorten_training(training: Any, share: float, steps: int, evaluates: bool) -> None:
    num_evaluations = _NUM_EVALUATIONS
    if training.eval_strategy == "steps" and training.eval_steps:
        every = training.eval_steps * share if training.eval_steps >= 1 else training.eval_steps * steps
        num_evaluations = max(1, round(steps / every))
    if training.warmup_steps >= 1:
        training.warmup_steps = round(share * training.warmup_steps)
    schedule = training.lr_scheduler_kwargs or {}
    if isinstance(schedule, Mapping):
        counts = {name: round(share * own) for name, own in schedule.items() if name.endswith("_steps") and own}
        training.lr_scheduler_kwargs = {**schedule, **counts} or None
    training.max_steps, training.eval_strategy, training.eval_delay = steps, "steps", 0
    training.eval_steps = _divisor(steps, num_evaluations) if evaluates else steps
    training.save_strategy, training.load_best_model_at_end = "no", False


def _divisor(steps: int, num_evaluations: int) -> int:
    """Finds the interval of about so many evaluations that has one at the end."""
    return min((n for n in range(1, steps + 1) if steps % n == 0), key=lambda n: abs(steps / n - num_evaluations))


def _evaluates(policy: Policy) -> bool:
    """Whether a policy that limits the mixture goes by evaluations."""
    while (inner := _inside(policy)) is not None:
        if policy.limits_mixture and asked(type(policy).needs, EvaluationLoss):
            return True
        policy = inner.policy
    return False


def _differences(streams: Sequence[Stream], share: float) -> list[str]:
    unknown = [stream.name for stream in streams if stream.is_iterable]
    memories = [stream.name for stream in streams if stream.is_memory]
    few = [own.name for own in streams if own.num_samples and not own.is_memory and own.num_samples * share < 1.0]
    found = []
    if unknown:
        found.append(f"Not cut, as their numbers of rows are unknown: {listed(unknown)}. They may repeat less often.")
    if memories:
        found.append(f"Replay buffers keep their size: {listed(memories)}.")
    if few:
        found.append(f"Less than a row would be left, and one is taken, of {listed(few)}: they repeat less often.")
    return found
