"""What a model has to be found with again after it was run beside its training."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn
from transformers import TrainingArguments

from mixer.models.snapshot import Snapshot


@contextlib.contextmanager
def gradients_stashed(parameters: Sequence[nn.Parameter]) -> Iterator[Sequence[nn.Parameter]]:
    """Puts gradients aside, and back afterwards.

    Args:
        parameters: Whose.

    Yields:
        The same parameters, without gradients.
    """
    kept = [parameter.grad for parameter in parameters]
    for parameter in parameters:
        parameter.grad = None
    try:
        yield parameters
    finally:
        for parameter, gradient in zip(parameters, kept, strict=True):
            parameter.grad = gradient


@contextlib.contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Runs a model as in evaluation, without gradients; modes go back one by one, as parts may have modes of their own.

    Args:
        model: The model.
    """
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def model_restored(
    model: Any, args: TrainingArguments, training: bool, inner: nn.Module | None = None
) -> Iterator[None]:
    """Puts mode, random state, running statistics and the Trainer's own settings back afterwards.

    Args:
        model: The model as it is trained.
        args: The Trainer's arguments; meanwhile losses count the items that they are told.
        training: The mode meanwhile.
        inner: The model without what wraps it for several ranks, whose state is put back; `None` for that of `model`.
    """
    was_training = model.training
    averages, args.average_tokens_across_devices = args.average_tokens_across_devices, True
    start = Snapshot(model if inner is None else inner, args.device)
    try:
        model.train(training)
        yield
    finally:
        start.restore()
        model.train(was_training)
        args.average_tokens_across_devices = averages
