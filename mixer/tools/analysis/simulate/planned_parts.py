"""From a recipe to the objects that plan its run; rules that need what only training shows are held at their start."""

import copy
from dataclasses import replace
from typing import Any, cast

from transformers import TrainingArguments

from mixer.ledger.evaluated_losses import check_eval_weights
from mixer.loading.build import new_mixing, resolve_budget, resolve_policy
from mixer.loading.learning_rate import check_schedule
from mixer.measurements import LearningRate, Needs, names_of
from mixer.mixture.controller import Mixing
from mixer.mixture.stream import Stream
from mixer.mixture.streams import as_streams
from mixer.run.class_checks import check_budget, check_finite
from mixer.run.config import options_in
from mixer.run.loading import data_seed
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.stream_checks import check_evaluation, check_streams
from mixer.trainer.checks.requirements import check_needs
from mixer.utils.errors import require
from mixer.utils.random_state import seeded
from mixer.utils.text import listed


class Parts:
    """The objects that plan a run: all that the trainer builds but the model.

    Args:
        recipe: The recipe.
        num_ranks: Number of processes of the launch.

    Attributes:
        args: The training arguments, as each rank has them.
        streams: The streams.
        mixing: The controller.
        followers: Functions that fill replay buffers, called with each plan.
        stand_ins: Names of the replay buffers that plain ones of their capacity replace, because they choose entries
            by what only a model shows, or keep contents that only a loader reads.

    Raises:
        ValueError: If a part cannot be built, with the trainer's message.
    """

    def __init__(self, recipe: Recipe, num_ranks: int):
        check_finite(recipe.training)
        check_streams(recipe.streams, recipe.mixing)
        args = self.args = of_ranks(recipe.training, num_ranks)
        config = options_in(recipe.training)
        with seeded(args.seed):  # leaves the caller's random state as it was
            built, evaluated = _data(recipe)
        check_evaluation(recipe.streams, evaluated, recipe.training)
        objective = config.chosen_objective(recipe.objective)
        objective = None if objective is None else objective.of_sets(list(evaluated))
        streams, self.stand_ins = _stand_ins(as_streams(built))
        self.streams = streams
        options = config.mixture(recipe.batch_size, recipe.budget, recipe.groupings, data_seed(args), objective)
        check_eval_weights(options.eval_weights, evaluated)
        schedule = copy.copy(options.schedule)  # copies, as simulate may hold them
        options = replace(options, schedule=schedule)
        policy = copy.copy(resolve_policy(config.chosen("mixing", recipe.mixing), streams))
        check_budget(args, resolve_budget(args, options.budget, streams))
        check_needs(policy, streams, args, evaluated, objective)
        check_schedule(schedule, None)
        has_heads = len({stream.head for stream in streams}) > 1
        self.mixing = new_mixing(args, streams, policy, options, config.loss_units, has_heads)
        memories = [stream for stream in streams if stream.is_memory]
        self.followers = [own.dataset.follow(own.name, streams, lambda: self.mixing.planner) for own in memories]


def _data(recipe: Recipe) -> tuple[list[Stream], dict[str, Any]]:
    """Returns the streams and the evaluation sets; those of TRL's trainers as these prepare, filter and pack them."""
    if recipe.trainer is not None:
        trainer = recipe.build_parts(has_weights=False).trainer
        return trainer.streams, cast(dict[str, Any], trainer.eval_dataset or {})
    data = recipe.build_data()
    return [own.stream for own in data.streams.values()], data.evaluation


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
        # Each of several processes has one device.
        self.train_batch_size = args.per_device_train_batch_size if num_ranks > 1 else args.train_batch_size

    def __getattr__(self, name: str) -> Any:
        return getattr(self._args, name)


def of_ranks(args: TrainingArguments, num_ranks: int) -> TrainingArguments:
    """Gives the training arguments that each of several processes would have.

    Raises:
        ValueError: If the number of processes is below 1.
    """
    require(num_ranks >= 1, "num_ranks", "at least 1", num_ranks)
    return cast(TrainingArguments, _Launched(args, num_ranks))


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
