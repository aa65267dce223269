"""Losses that are computed aside leave no trace in what TRL's trainers log of their own."""

import contextlib
import copy
from collections.abc import Iterator
from typing import Any

from torch import Tensor
from transformers import Trainer

from mixer.models.rank_metrics import gathering

_KEPT = ("_metrics", "_total_train_tokens")


@contextlib.contextmanager
def metrics_restored(trainer: Trainer) -> Iterator[None]:
    """Puts a trainer's metrics back afterwards, and has ranks not wait for each other in them.

    TRL's trainers add to their metrics in every `compute_loss`, and gather them from all ranks, of which some may have
    nothing to compute aside.

    Args:
        trainer: The trainer; one without such metrics is left alone.
    """
    if not isinstance(getattr(trainer, "_metrics", None), dict):
        yield
        return
    kept = {name: copy.deepcopy(getattr(trainer, name)) for name in _KEPT if hasattr(trainer, name)}
    try:
        with gathering(trainer, _of_this_rank):
            yield
    finally:
        for name, value in kept.items():
            setattr(trainer, name, value)


def _of_this_rank(values: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    return values
