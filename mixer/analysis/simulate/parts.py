"""From a recipe to the objects that plan its run."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

from transformers import TrainingArguments, set_seed

from mixer.analysis.simulate.ranks import of_ranks
from mixer.ledger.evaluated_losses import check_eval_weights
from mixer.loading.build import MixtureOptions, assemble, check_mixture, resolve_budget, resolve_policy
from mixer.mixture.controller import Mixing
from mixer.mixture.plan import Plan
from mixer.mixture.resolve import check_own_weights, check_samples
from mixer.mixture.stream import Stream, as_streams, describe
from mixer.recipe.checks import check_evaluation, check_streams
from mixer.recipe.recipe import Recipe
from mixer.schedules import as_schedule
from mixer.trainer.checks import check_budget
from mixer.utils.random_state import seeded


@dataclass(frozen=True)
class Parts:
    """What plans a run.

    Args:
        args: The training arguments, as each rank has them.
        streams: The streams.
        options: What the recipe says of the mixture beside streams and policy.
        mixing: The controller.
        evaluated: Names of the evaluation sets.
        followers: What fills replay buffers; each is told of the plans.
        stand_ins: Names of the replay buffers that choose by what only a model shows, or keep what only a loader reads:
            plain ones stand for them, which hold as many entries.
    """

    args: TrainingArguments
    streams: list[Stream]
    options: MixtureOptions
    mixing: Mixing
    evaluated: tuple[str, ...]
    followers: list[Callable[[Plan], None]]
    stand_ins: tuple[str, ...]


def parts_of(recipe: Recipe, num_ranks: int) -> Parts:
    """Builds what plans a run: all that the trainer builds but the model.

    Args:
        recipe: The recipe.
        num_ranks: Number of processes of the launch.

    Returns:
        The parts.

    Raises:
        ValueError: If a part cannot be built, as the trainer would say.
    """
    check_streams(recipe.streams, recipe.mixing)
    args = of_ranks(recipe.training, num_ranks)
    tokenizer = recipe.load_tokenizer()
    with seeded(args.seed):  # puts back what was drawn
        set_seed(args.seed)
        built = recipe.build_streams(tokenizer)
    evaluation = {name: one.evaluation for name, one in built.items() if one.evaluation is not None}
    check_evaluation(recipe.streams, evaluation, recipe.training)
    check_eval_weights(recipe.eval_weights, evaluation)
    streams, stand_ins = _stand_ins(as_streams([one.stream for one in built.values()]))
    seed = args.seed if args.data_seed is None else args.data_seed
    schedule = as_schedule(recipe.batch_size)
    groupings = tuple(recipe.groupings)
    options = MixtureOptions(
        schedule, recipe.budget, recipe.epoch_size, groupings, recipe.drawing, seed, recipe.eval_weights
    )
    policy = resolve_policy(recipe.mixing, streams)
    check_budget(args, resolve_budget(args, options.budget))
    check_mixture(policy, streams, args, options, evaluation)
    planner, clock, size = assemble(args, streams, options)
    check_samples(policy, len(streams), size.value)
    mixing = Mixing(planner, policy, clock, size)
    check_own_weights(policy, describe(streams), mixing.weights)
    return Parts(args, streams, options, mixing, tuple(evaluation), _followers(streams, mixing), stand_ins)


def _stand_ins(streams: list[Stream]) -> tuple[list[Stream], tuple[str, ...]]:
    """Puts plain buffers in the place of those that only a trainer could fill; names them too."""
    found, names = [], []
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
        found.append(stream)
    return found, tuple(names)


def _followers(streams: list[Stream], mixing: Mixing) -> list[Any]:
    return [
        stream.dataset.follow(stream.name, streams, lambda: mixing.planner) for stream in streams if stream.is_memory
    ]
