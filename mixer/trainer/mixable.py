"""Refuses, before anything is built, trainers whose way of making batches the mixture's would silently replace."""

import inspect
from typing import Any

from transformers import Seq2SeqTrainer, Trainer, TrainingArguments

_MAKE_BATCHES = ("get_train_dataloader", "_get_train_sampler", "get_batch_samples", "_inner_training_loop")
_STOCK = (Trainer, Seq2SeqTrainer)
# Has the order of older versions of transformers kept where it needs one, for the losses that are refused below.
_HARMLESS = {("trl.trainer.kto_trainer", "KTOTrainer", "_get_train_sampler")}
_IN_ORDER = ("model", "args", "data_collator", "train_dataset")

_NOT_BY_SAMPLE = {
    "aot": "sorts the log-ratios of a micro-batch",
    "aot_unpaired": "sorts the log-ratios of a micro-batch",
    "sft": "is a mean over the tokens of a micro-batch, whatever pairs they are from",
}


def check_trainer_is_supported(trainer_class: type, mixin: type) -> None:
    """Refuses classes below the mixin that make their batches themselves.

    Args:
        trainer_class: The class that is built.
        mixin: The last of the mixins in its order of methods.

    Raises:
        TypeError: With class and method, the reason and the way out.
    """
    for owner, name in _overridden(trainer_class, mixin):
        if (owner.__module__, owner.__name__, name) in _HARMLESS:
            continue
        raise TypeError(
            f"{trainer_class.__name__}: {owner.__name__} has a {name} of its own, which mixing replaces: the batches "
            "that it makes (generated, repeated, or in an order of its own) would silently be others. Train with "
            f"{owner.__name__} on one data set that is mixed beforehand (datasets.interleave_datasets), or take a "
            f"trainer that leaves {name} to transformers.Trainer, such as SFTTrainer or DPOTrainer."
        )


def _overridden(trainer_class: type, mixin: type) -> list[tuple[type, str]]:
    order = trainer_class.__mro__
    below = [owner for owner in order[order.index(mixin) + 1 :] if issubclass(owner, Trainer) and owner not in _STOCK]
    return [(owner, name) for owner in below for name in _MAKE_BATCHES if name in vars(owner)]


def check_order(trainer_class: type, mixin: type, args: Any, positional: tuple[Any, ...]) -> bool:
    """Refuses arguments that were given by position to a trainer with another order.

    Args:
        trainer_class: The class that is built.
        mixin: The last of the mixins in its order of methods.
        args: What was given as `args`.
        positional: What was given by position after the first four.

    Returns:
        Whether the trainer knows the first four by these names; else they are in this order.

    Raises:
        TypeError: With what was found where something else was expected.
    """
    order = trainer_class.__mro__
    parents = [owner for owner in order[order.index(mixin) + 1 :] if "__init__" in vars(owner)]
    # Those that take anything hand it on.
    parent = next(owner for owner in parents if "model" in _names(owner) or owner is Trainer)
    names = _names(parent)
    way_out = f"Give all but the model by name, as in {trainer_class.__name__}(model, args=args, train_dataset=...)."
    if args is not None and not isinstance(args, TrainingArguments):
        raise TypeError(
            f"args must be TrainingArguments, got {type(args).__name__}. The order of arguments here is "
            f"{', '.join(_IN_ORDER)}; that of {parent.__name__} is {', '.join(names[:4])}. {way_out}"
        )
    knows_names = set(_IN_ORDER) <= set(names)
    if positional and knows_names and tuple(names[:4]) != _IN_ORDER:
        raise TypeError(
            f"{len(positional)} more arguments than {', '.join(_IN_ORDER)} were given by position, and "
            f"{parent.__name__} takes others in that place: its order is {', '.join(names[:6])}. {way_out}"
        )
    return knows_names


def check_compute_loss(trainer_class: type[Trainer]) -> None:
    """Refuses a `compute_loss` as it was written before it was given the number of items.

    Args:
        trainer_class: The class that is built.

    Raises:
        TypeError: With the parameters that it has, and the one that it lacks.
    """
    parameters = inspect.signature(trainer_class.compute_loss).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if "num_items_in_batch" not in parameters and not takes_any:
        raise TypeError(
            f"{trainer_class.__name__}.compute_loss takes {list(parameters)[1:]}, but the Trainer gives it "
            "num_items_in_batch too: add num_items_in_batch=None to its parameters."
        )


def check_create_optimizer(trainer_class: type[Trainer]) -> None:
    """Refuses a `create_optimizer_and_scheduler` of a user's own, which the Trainer has but does not call.

    Args:
        trainer_class: The class that is built.

    Raises:
        TypeError: With the class that has it, and the way out.
    """
    name = "create_optimizer_and_scheduler"
    owner = next(owner for owner in trainer_class.__mro__ if name in vars(owner))
    if owner is not Trainer:
        raise TypeError(
            f"{trainer_class.__name__}: {owner.__name__} has a {name} of its own, which the Trainer does not call, so "
            "that its optimizer would never be used. Override create_optimizer() and create_scheduler("
            "num_training_steps, optimizer=None) in its place, or give optimizers=(optimizer, scheduler)."
        )


def check_prepared_elsewhere(trainer_class: type) -> None:
    """Refuses trainers of TRL that prepare their data in another way than by `_prepare_dataset`.

    Args:
        trainer_class: A class without that method.

    Raises:
        TypeError: With the class and the way out.
    """
    owner = next((owner for owner in trainer_class.__mro__ if owner.__module__.startswith("trl.")), None)
    if owner is not None:
        raise TypeError(
            f"{trainer_class.__name__}: {owner.__name__} of TRL has no _prepare_dataset, by which the data set of each "
            "stream would be prepared, so that it would go unprepared. Mix the data sets beforehand "
            "(datasets.interleave_datasets), or take SFTTrainer, DPOTrainer, RewardTrainer or KTOTrainer."
        )


def _names(owner: type) -> list[str]:
    return list(inspect.signature(owner.__init__).parameters)[1:]  # type: ignore[misc]  # of that very class


def check_loss(trainer: Trainer) -> None:
    """Refuses losses that are no mean over samples: they depend on how a step is cut into micro-batches.

    Args:
        trainer: The trainer, as far as it is built when its data are prepared.

    Raises:
        ValueError: With the loss, the reason and the way out.
    """
    name = type(trainer).__name__
    if getattr(trainer, "calculate_KL", False):
        raise ValueError(
            f"{name}: the loss 'kto' compares each sample with a mean over the micro-batch that it is in, of "
            "completions that were swapped between neighbours of one data set, and mixing puts other neighbours "
            "together. Use loss_type='apo_zero_unpaired', which needs no such mean, or mix the data sets beforehand."
        )
    for loss in getattr(trainer, "loss_types", ()):
        if loss in _NOT_BY_SAMPLE:
            raise ValueError(
                f"{name}: loss_type {loss!r} {_NOT_BY_SAMPLE[loss]}, so that its gradient depends on how a step is "
                "cut and no stream has a loss of its own. Use a loss of single pairs, such as 'sigmoid' or 'ipo'."
            )
