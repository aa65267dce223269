"""Metrics of TRL's trainers: in micro-batches, on several ranks, and around auxiliary passes."""

import contextlib
import copy
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers import Trainer

from mixer.models.row_losses import generates
from mixer.run.hooks import ForwardResult, StepHook
from mixer.run.replaced_methods import replaced
from mixer.run.state import PresentStep
from mixer.utils.attributes import attributes_held

_KEPT = ("_metrics", "_total_train_tokens")


def gathering(trainer: Trainer, gather: Callable[..., Any]) -> contextlib.AbstractContextManager[None]:
    """Replaces the gather methods of a trainer's accelerator.

    Args:
        trainer: The trainer.
        gather: Takes this rank's values and returns those of all ranks.
    """
    return replaced(trainer.accelerator, gather=gather, gather_for_metrics=gather)


def rows_of_ranks(accelerator: Any, counts: bool) -> Callable[..., Any]:
    """Returns a function that gathers rows from ranks with unequal numbers.

    The ranks' micro-batches differ in size, and a rank without samples runs a sample of another rank to keep in step.

    Args:
        accelerator: The accelerator.
        counts: Whether this rank has samples of its own in the micro-batch.

    Returns:
        A function from this rank's rows, or number, to those of all ranks with samples.
    """
    return partial(_gather, type(accelerator).gather.__get__(accelerator), counts)


def _gather(gather: Callable[..., Any], counts: bool, values: Any, *_args: Any, **_kwargs: Any) -> Any:
    if not isinstance(values, Tensor):
        return gather(values)
    rows = values.reshape(1) if values.dim() == 0 else values
    own = torch.tensor([len(rows) if counts else 0], device=rows.device)
    sizes: list[int] = gather(own).tolist()
    most = max(sizes)
    if not most:  # no rank has any
        return rows
    padded = F.pad(rows[:most], (0, 0) * (rows.dim() - 1) + (0, max(most - len(rows), 0)))
    parts = gather(padded).split(most)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])


def keeps_metrics(trainer: Trainer) -> bool:
    """Whether this is one of TRL's trainers, or keeps metrics in the same way."""
    return isinstance(getattr(trainer, "_metrics", None), dict)


@contextlib.contextmanager
def metrics_restored(trainer: Trainer) -> Iterator[None]:
    """Restores a trainer's metrics afterwards, and avoids gathers between ranks inside.

    TRL's trainers update their metrics in every `compute_loss`, with a gather from all ranks, of which some may have no
    auxiliary pass.

    Args:
        trainer: The trainer; one without such metrics is left alone.
    """
    if not keeps_metrics(trainer):
        yield
        return
    copies = {name: copy.deepcopy(getattr(trainer, name)) for name in _KEPT if hasattr(trainer, name)}
    with attributes_held(trainer, **copies), gathering(trainer, lambda values, *_, **__: values):
        yield


def name_by_set(trainer: Trainer, name: str) -> set[str]:
    """Names what a trainer of TRL has measured in an evaluation by its set; all sets would have the same names.

    The tokens of the run, which are no set's, are left out: each log of training has them.

    Args:
        trainer: The trainer.
        name: The set.

    Returns:
        The names without the set; empty for other trainers.
    """
    measured = vars(trainer).get("_metrics", {}).get("eval", {})
    own = {metric: values for metric, values in measured.items() if metric != "num_tokens"}
    measured.clear()
    measured.update({f"{name}_{metric}": values for metric, values in own.items()})
    return set(own)


class TRLMetrics(StepHook):
    """Keeps TRL's own metrics as they would be without micro-batches and padding.

    Args:
        trainer: One of TRL's trainers.
        step: The present step.
    """

    def __init__(self, trainer: Trainer, step: PresentStep):
        self._trainer, self._step = trainer, step
        self._gathering = contextlib.ExitStack()
        self._num_tokens = 0

    def prepare(self, model: nn.Module) -> None:
        """Counts on from what the trainer has counted; see `StepHook.prepare`."""
        self._num_tokens = getattr(self._trainer, "_total_train_tokens", 0)

    def begin_micro_batch(self, trained: ForwardResult, is_synchronised: bool) -> None:
        """Has values gathered from ranks with unequal numbers of rows; see `StepHook.begin_micro_batch`."""
        if self._trainer.args.world_size > 1:
            rows = rows_of_ranks(self._trainer.accelerator, not trained.micro.is_padding)
            self._gathering.enter_context(gathering(self._trainer, rows))

    def end_micro_batch(self, model: nn.Module, trained: ForwardResult, ends_priority: bool) -> None:
        """Has values gathered as before; see `StepHook.end_micro_batch`."""
        self._gathering.close()

    def cancel(self) -> None:
        """Has values gathered as before; see `StepHook.cancel`."""
        self._gathering.close()

    def end_backward(self, model: nn.Module) -> None:
        """Counts tokens, but not those of ranks without samples or of repeated steps; see `StepHook.end_backward`."""
        self._num_tokens += int(self._step.counts.tokens.sum())
        metrics = vars(self._trainer)
        metrics["_total_train_tokens"] = self._num_tokens
        metrics["_metrics"]["train"]["num_tokens"] = [self._num_tokens]


def trl_hooks(trainer: Trainer, step: PresentStep) -> list[StepHook]:
    """Makes the hook that one of TRL's trainers needs; none for others, and for those whose rows are generated."""
    return [TRLMetrics(trainer, step)] if keeps_metrics(trainer) and not generates(trainer.args) else []
