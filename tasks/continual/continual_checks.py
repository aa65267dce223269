"""What a continual run can tell of its arguments before it makes anything."""

from collections.abc import Mapping
from typing import Any, Literal

from torch import nn
from transformers import TrainingArguments

from mixer.trainer.method import as_methods
from mixer.trainer.trainer import MixingMixin
from replay import ReplayBuffer
from tasks.task import TaskSequence

Optimizer = Literal["fresh", "kept"]


def check_types(model: Any, sequence: Any, args: Any, memory: Any, methods: Any, trainer_class: Any) -> None:
    """Makes sure that arguments are what they are called.

    Args:
        model: A module.
        sequence: A sequence of tasks.
        args: Training arguments.
        memory: A buffer, or `None`.
        methods: A list of methods, a function of no arguments that gives one, or `None`.
        trainer_class: A class of trainers.

    Raises:
        TypeError: If one of them is something else.
    """
    kinds = {"model": (model, nn.Module), "sequence": (sequence, TaskSequence), "args": (args, TrainingArguments)}
    if memory is not None:
        kinds["memory"] = (memory, ReplayBuffer)
    for name, (found, kind) in kinds.items():
        if not isinstance(found, kind):
            raise TypeError(f"{name} must be a {kind.__name__}, got a {type(found).__name__}.")
    if not callable(methods):
        as_methods(methods or ())
    if not (isinstance(trainer_class, type) and issubclass(trainer_class, MixingMixin)):
        raise TypeError(f"trainer_class must be MixingTrainer or a class derived from it, got {trainer_class!r}.")


def check_values(args: TrainingArguments, optimizer: Any, curve_steps: Any, options: Mapping[str, Any]) -> None:
    """Makes sure that values are such as a continual run can work with.

    Args:
        args: Training arguments.
        optimizer: Whether it is kept.
        curve_steps: Length of learning curves.
        options: Further arguments of the trainer.

    Raises:
        ValueError: If one of them is not.
    """
    if optimizer not in ("fresh", "kept"):
        raise ValueError(f"optimizer must be 'fresh' or 'kept', got {optimizer!r}.")
    if any(given is not None for given in options.get("optimizers", ())):
        raise ValueError("optimizers are made for each task: say args.optim or optimizer_cls_and_kwargs instead.")
    if args.fsdp or args.deepspeed:
        raise ValueError("ContinualRun saves whole models from one process: leave out fsdp and deepspeed, or use DDP.")
    if curve_steps is not None and not (type(curve_steps) is int and curve_steps >= 0):
        raise ValueError(f"curve_steps must be a whole number, 0 or more, or None for no curves, got {curve_steps!r}.")
