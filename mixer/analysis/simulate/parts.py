"""From a recipe to the objects that plan its run."""

import copy
import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, cast

import torch
from transformers import TrainingArguments, get_scheduler, set_seed

from mixer.ledger.evaluated_losses import check_eval_weights
from mixer.loading.build import MixtureOptions, assemble, resolve_budget, resolve_policy
from mixer.mixture.clock import Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.learning_rate import LearningRate
from mixer.mixture.plan import Plan
from mixer.mixture.resolve import check_needs, check_own_weights, check_samples, check_schedule
from mixer.mixture.stream import Stream, as_streams, describe
from mixer.recipe.checks import check_evaluation, check_streams
from mixer.recipe.recipe import Recipe
from mixer.schedules import as_schedule
from mixer.trainer.checks import check_budget
from mixer.utils.random_state import seeded


@dataclass(frozen=True)
class Parts:
    """The objects that plan a run.

    Args:
        args: The training arguments, as each rank has them.
        streams: The streams.
        options: The recipe's options of the mixture, but for streams and policy.
        mixing: The controller.
        evaluated: Names of the evaluation sets.
        followers: Functions that fill replay buffers, called with each plan.
        stand_ins: Names of the replay buffers that plain ones of their capacity replace, because they choose entries
            by what only a model shows, or keep contents that only a loader reads.
    """

    args: TrainingArguments
    streams: list[Stream]
    options: MixtureOptions
    mixing: Mixing
    evaluated: tuple[str, ...]
    followers: list[Callable[[Plan], None]]
    stand_ins: tuple[str, ...]


def parts_of(recipe: Recipe, num_ranks: int) -> Parts:
    """Builds the objects that plan a run: all that the trainer builds but the model.

    Args:
        recipe: The recipe.
        num_ranks: Number of processes of the launch.

    Returns:
        The parts.

    Raises:
        ValueError: If a part cannot be built, with the trainer's message.
    """
    check_streams(recipe.streams, recipe.mixing)
    args = of_ranks(recipe.training, num_ranks)
    tokenizer = recipe.load_tokenizer()
    with seeded(args.seed):  # leaves the caller's random state as it was
        set_seed(args.seed)
        built = recipe.build_streams(tokenizer)
    evaluation = {name: one.evaluation for name, one in built.items() if one.evaluation is not None}
    check_evaluation(recipe.streams, evaluation, recipe.training)
    check_eval_weights(recipe.eval_weights, evaluation)
    streams, stand_ins = _stand_ins(as_streams([one.stream for one in built.values()]))
    seed = args.seed if args.data_seed is None else args.data_seed
    schedule = copy.copy(as_schedule(recipe.batch_size))  # copies, as simulate may hold them
    groupings = tuple(recipe.groupings)
    options = MixtureOptions(
        schedule, recipe.budget, recipe.epoch_size, groupings, recipe.drawing, seed, recipe.eval_weights
    )
    policy = copy.copy(resolve_policy(recipe.mixing, streams))
    check_budget(args, resolve_budget(args, options.budget))
    check_needs(policy, streams, args, evaluation)
    check_schedule(options.schedule, None)
    planner, clock, size = assemble(args, streams, options)
    check_samples(policy, len(streams), size.value)
    mixing = Mixing(planner, policy, clock, size)
    check_own_weights(policy, describe(streams), mixing.weights)
    followers = [
        stream.dataset.follow(stream.name, streams, lambda: mixing.planner) for stream in streams if stream.is_memory
    ]
    return Parts(args, streams, options, mixing, tuple(evaluation), followers, stand_ins)


def _stand_ins(streams: list[Stream]) -> tuple[list[Stream], tuple[str, ...]]:
    """Replaces the buffers that only a trainer could fill by plain ones; names them too."""
    plain, names = [], []
    for stream in streams:
        try:
            if stream.is_memory:
                stream.dataset.follow(stream.name, streams, lambda: None)
        except ValueError:
            stand_in = getattr(stream.dataset, "stand_in", None)
            if stand_in is None:
                raise
            names.append(stream.name)
            stream = replace(stream, dataset=stand_in())
        plain.append(stream)
    return plain, tuple(names)


class _Launched:
    def __init__(self, args: TrainingArguments, num_ranks: int):
        self._args, self.world_size = args, num_ranks

    @property
    def train_batch_size(self) -> int:
        """Samples of a micro-batch: each of several processes has one device."""
        own = self._args
        return own.per_device_train_batch_size if self.world_size > 1 else own.train_batch_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._args, name)


def of_ranks(args: TrainingArguments, num_ranks: int) -> TrainingArguments:
    """Gives the training arguments that each of several processes would have.

    Args:
        args: The arguments.
        num_ranks: Number of processes.

    Returns:
        An object that stands for them.

    Raises:
        ValueError: If the number is below 1.
    """
    if num_ranks < 1:
        raise ValueError(f"num_ranks must be at least 1, got {num_ranks}.")
    return cast(TrainingArguments, _Launched(args, num_ranks))


class PlannedLearningRate:
    """The learning rate of planned steps.

    Args:
        args: The training arguments.
        planned_steps: Number of steps of its schedule.
    """

    def __init__(self, args: TrainingArguments, planned_steps: int):
        self._peak = args.learning_rate
        options: Any = args.lr_scheduler_kwargs
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=args.learning_rate)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # nothing is stepped here
            scheduler = get_scheduler(
                args.lr_scheduler_type,
                optimizer=optimizer,
                num_warmup_steps=args.get_warmup_steps(planned_steps),
                num_training_steps=planned_steps,
                scheduler_specific_kwargs=options,
            )
        self._schedule = LearningRate(scheduler)

    @property
    def is_known(self) -> bool:
        """Whether it is a function of the step, and does not follow a metric."""
        return not math.isnan(self.at(0.0))

    def at(self, position: float) -> float:
        """Gives the schedule's factor at a step, 1 at its peak; see `LearningRate.at`."""
        return self._schedule.at(position)

    def of(self, mixing: Mixing) -> float:
        """Gives the learning rate of the controller's next step; NaN if it is not known."""
        factor = 1.0 if mixing.clock.counts_steps else mixing.learning_rate_factor
        return self._peak * self.at(mixing.clock.schedule_position) * factor


class Evaluations:
    """The steps after which the Trainer evaluates.

    Args:
        args: The training arguments.
        clock: The clock of the run.
    """

    def __init__(self, args: TrainingArguments, clock: Clock):
        self._args, self._clock = args, clock
        self._strategy = str(getattr(args.eval_strategy, "value", args.eval_strategy))
        self._progress = 0.0

    @property
    def at_start(self) -> bool:
        """Whether it evaluates before the first step."""
        return bool(self._args.eval_on_start)

    def is_due(self) -> bool:
        """Whether it evaluates after the step that the clock has just counted; call it once after each step."""
        clock, before = self._clock, self._progress
        self._progress = clock.progress
        if self._strategy == "epoch":
            return clock.at_epoch_end and self._args.eval_delay <= clock.epoch
        if self._strategy != "steps" or clock.step < self._args.eval_delay:
            return False
        steps = float(self._args.eval_steps or self._args.logging_steps)
        if steps >= 1.0:
            return clock.step % int(steps) == 0
        if clock.counts_steps:
            return clock.step % math.ceil(clock.planned_steps * steps) == 0
        return math.floor(clock.progress / steps + 1e-9) > math.floor(before / steps + 1e-9)
