"""Checks of trainer classes: which overrides a run on streams calls, and in which order constructors take arguments."""

import inspect
import itertools
from collections.abc import Collection
from dataclasses import fields
from types import CodeType
from typing import Any, get_args

from transformers import Seq2SeqTrainer, Trainer, TrainingArguments

from mixer.run.config import MixingOptions
from mixer.utils.errors import wrong_type
from mixer.utils.recorded_arguments import check_keywords

_STOCK = (Trainer, Seq2SeqTrainer)
# What makes the batches of training is the streams' in place of the Trainer's.
_NEVER_CALLED = {
    "_get_num_items_in_batch": "items are counted over all micro-batches and ranks of a step, as the loss needs them. "
    "Normalise in compute_loss_func or compute_loss, which get their number as num_items_in_batch."
}
_LOADER = "get_train_dataloader"  # below the mixin, it is read: `own_loader.py`
_REPLACED = ("get_batch_samples", "_inner_training_loop", "set_initial_training_values", "get_total_train_batch_size")
_EXTENDED = ("train", "_init_training_state", "_run_epoch", "_maybe_log_save_evaluate", "_finalize_training")
_IN_ORDER = ("model", "args", "data_collator", "train_dataset")
_ELSEWHERE = {
    option.name: f"MixingConfig({option.name}=...), the training arguments" for option in fields(MixingOptions)
}
_ELSEWHERE |= dict.fromkeys(
    ("targets", "development_sets"), "Objective(..., development_sets=...), the argument objective"
)


def check_class(trainer_class: type[Trainer], mixin: type, args: Any, positional: tuple[Any, ...]) -> Collection[str]:
    """Refuses trainer classes, overrides and orders of arguments that mixing cannot honour.

    Args:
        trainer_class: The class that is built.
        mixin: The mixin in its method resolution order.
        args: The argument `args`.
        positional: Positional arguments after the first four.

    Returns:
        The first four arguments that the parent's constructor takes by name; see `check_order`.

    Raises:
        TypeError: With class and method, the reason and the alternatives.
    """
    check_overrides(trainer_class, mixin)
    check_compute_loss(trainer_class)
    check_create_optimizer(trainer_class)
    return check_order(trainer_class, mixin, args, positional)


def check_overrides(trainer_class: type, mixin: type) -> None:
    """Refuses overrides that a run on streams would never call, or that would bypass what it needs.

    Args:
        trainer_class: The class that is built.
        mixin: The mixin in its method resolution order.

    Raises:
        TypeError: With class and method, the reason and the alternatives.
    """
    order = trainer_class.__mro__
    carried: Collection[tuple[type, str]] = getattr(trainer_class, "carried_overrides", ())
    owners = [owner for owner in order[: order.index(Trainer)] if owner not in (mixin, *_STOCK)]
    for owner, name in itertools.product(owners, (_LOADER, *_REPLACED, *_NEVER_CALLED, *_EXTENDED)):
        is_below = order.index(owner) > order.index(mixin)
        if name not in vars(owner) or (owner, name) in carried or (is_below and name == _LOADER):
            continue
        found = f"of {trainer_class.__name__} is overridden in {owner.__name__}"
        if is_below and name not in _EXTENDED:
            raise wrong_type(
                name,
                f"{found}, but mixing replaces it: what it does would be lost. Give {owner.__name__} a data set mixed "
                f"beforehand (datasets.interleave_datasets), or mix `class Plain({owner.__name__}): {name} = "
                f"Trainer.{name}`.",
            )
        if name in _NEVER_CALLED:
            raise wrong_type(name, f"{found}, but mixing does not call it: {_NEVER_CALLED[name]}")
        if not is_below and not _may_call_parent(vars(owner)[name], name):
            text = f"{found} without super().{name}(), which a run on streams needs. Call it and change what it gets "
            text += "or returns, or change the streams (preprocess, data_collator, weights)"
            below = ", or override it in a Trainer below the mixin, `class Mine(MixingMixin, MyTrainer)`"
            raise wrong_type(name, f"{text}{below if name == _LOADER else ''}.")


def _may_call_parent(method: Any, name: str) -> bool:
    """Whether the code of a method, or of what it wraps, mentions its parent's; unknown callables may call it."""
    code = getattr(method, "__code__", None)
    if code is None or _mentions(code, name):
        return True
    wrapped = [cell.cell_contents for cell in method.__closure__ or () if inspect.isfunction(cell.cell_contents)]
    return any(_may_call_parent(function, name) for function in wrapped)


def _mentions(code: CodeType, name: str) -> bool:
    inner = [value for value in code.co_consts if isinstance(value, CodeType)]
    return not {"super", name}.isdisjoint(code.co_names) or any(_mentions(function, name) for function in inner)


def check_trainer_keywords(trainer_class: type, mixin: type, given: Collection[str]) -> None:
    """Refuses keyword arguments that belong elsewhere, or that neither the mixin nor the class below it has.

    Args:
        trainer_class: The class that is built.
        mixin: The mixin in its method resolution order.
        given: Names of the arguments that the mixin passes on.

    Raises:
        TypeError: With the argument that was probably meant.
    """
    for name in given:
        if name in _ELSEWHERE:
            raise wrong_type(name, f"is no argument of {trainer_class.__name__}: set it in {_ELSEWHERE[name]}.")
    order = trainer_class.__mro__
    below = next(owner for owner in order[order.index(mixin) + 1 :] if "__init__" in vars(owner))
    parameters = inspect.signature(below.__init__).parameters.values()  # type: ignore[misc]  # of that very class
    if not any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters):
        own = [name for name in _names(mixin) if name not in ("positional", "kwargs")]
        check_keywords(given, [*dict.fromkeys([*own, *_names(below)])], trainer_class.__name__)


def check_order(trainer_class: type, mixin: type, args: Any, positional: tuple[Any, ...]) -> Collection[str]:
    """Refuses positional arguments to a trainer that takes them in another order.

    Args:
        trainer_class: The class that is built.
        mixin: The mixin in its method resolution order.
        args: The argument `args`.
        positional: Positional arguments after the first four.

    Returns:
        The names of the first four that are parameters of the parent's constructor; none if it lacks one besides
        `data_collator`, and they are passed by position.

    Raises:
        TypeError: With the order that the parent expects.
    """
    order = trainer_class.__mro__
    parents = [owner for owner in order[order.index(mixin) + 1 :] if "__init__" in vars(owner)]
    # Constructors that take *args or **kwargs only pass them on.
    parent = next(owner for owner in parents if "model" in _names(owner) or owner is Trainer)
    names = _names(parent)
    hint = f"Pass all but the model by name, as in {trainer_class.__name__}(model, args=args, train_dataset=...)."
    if args is not None and not isinstance(args, TrainingArguments):
        own_order = f"The order here is {', '.join(_IN_ORDER)}; {parent.__name__} has {', '.join(names[:4])}. {hint}"
        raise wrong_type("args", f"must be TrainingArguments, got {type(args).__name__}. {own_order}")
    taken = [name for name in _IN_ORDER if name in names]
    knows_names = {*_IN_ORDER} - {*taken} <= {"data_collator"}
    if positional and knows_names and tuple(names[:4]) != _IN_ORDER:
        own_order = f"{parent.__name__} has another order: {', '.join(names[:6])}. {hint}"
        raise wrong_type("positional arguments", f"follow {', '.join(_IN_ORDER)}, but {own_order}")
    _check_config(trainer_class, parent, args)
    return taken if knows_names else ()


def _check_config(trainer_class: type, parent: type, args: Any) -> None:
    """Refuses options of a mixture with training arguments that the parent would not take."""
    annotation = inspect.signature(parent.__init__).parameters["args"].annotation  # type: ignore[misc]
    kinds = [kind for kind in get_args(annotation) if isinstance(kind, type) and kind is not TrainingArguments]
    own = next((kind for kind in kinds if issubclass(kind, TrainingArguments)), None)
    if own is not None and isinstance(args, MixingOptions) and not isinstance(args, own):
        raise wrong_type(
            "args",
            f"of {trainer_class.__name__} must be a {own.__name__}, got a {type(args).__name__}: use a class of both, "
            f"MixingSFTConfig or @dataclass class MyConfig(MixingOptions, {own.__name__}).",
        )


def check_compute_loss(trainer_class: type[Trainer]) -> None:
    """Refuses a `compute_loss` that does not take `num_items_in_batch`.

    Raises:
        TypeError: With the parameters that it has, and the missing one.
    """
    parameters = inspect.signature(trainer_class.compute_loss).parameters
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    if "num_items_in_batch" not in parameters and not takes_any:
        text = f"of {trainer_class.__name__} takes {list(parameters)[1:]}, but the Trainer also passes "
        raise wrong_type("compute_loss", f"{text}num_items_in_batch: add num_items_in_batch=None to its parameters.")


def check_create_optimizer(trainer_class: type[Trainer]) -> None:
    """Refuses an override of `create_optimizer_and_scheduler`, which the Trainer defines but does not call.

    Raises:
        TypeError: With the class that overrides it, and the alternatives.
    """
    name = "create_optimizer_and_scheduler"
    if (owner := next(owner for owner in trainer_class.__mro__ if name in vars(owner))) is not Trainer:
        text = f"of {trainer_class.__name__} is overridden in {owner.__name__}, but the Trainer does not call it. "
        text += (
            "Override create_optimizer() and create_scheduler(num_training_steps, optimizer=None), or pass optimizers."
        )
        raise wrong_type(name, text)


def _names(owner: type) -> list[str]:
    return list(inspect.signature(owner.__init__).parameters)[1:]  # type: ignore[misc]  # of that very class
