"""Rounds of generation: the prompts of a step, and the updates that their completions are used for."""

import contextlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from mixer.mixture.stream import Stream
from mixer.run.hf_compat import begin_round, synchronise_gradients
from mixer.run.samples import LoadingRules
from mixer.trainer.checks.trl_streams import first_sample
from mixer.trainer.grpo.reward_functions import STREAM
from mixer.trainer.preparation import StreamPreparation
from mixer.utils.attributes import attributes_held
from mixer.utils.errors import InvalidTypeError, InvalidValueError

PROMPTS = "prompts"  # a batch holds its rows under this name, since the Trainer's loop takes mappings


class PromptRules(LoadingRules):
    """Loads all prompts of a rank at once, whatever their columns: TRL splits their completions itself."""

    compares_columns = False

    @property
    def data_collator(self) -> Any:
        """Makes mappings of rows, which the loop takes."""
        return as_batch

    @property
    def most_samples(self) -> int:
        """Prompts of a rank in a round."""
        args: Any = self._trainer.args
        return int(args.generation_batch_size // args.num_generations // args.world_size)


class PromptPreparation(StreamPreparation):
    """Gives TRL's constructor the prompts of the first stream, and takes all back."""

    def stand_in(self, prepares: bool, args: Any, tokenizer: Any) -> Any:
        """Returns the training data for the parent's constructor; see `StreamPreparation.stand_in`."""
        for stream in self.streams:
            _check_stream(stream)
        lasting = [stream for stream in self.streams if not stream.is_memory]
        self.combined = self._combine()
        self._stand_in = lasting[0].dataset if lasting else None
        return self._stand_in


def as_batch(rows: list[Any]) -> dict[str, list[Any]]:
    """Collates rows to what the loop takes; TRL takes them as they are."""
    return {PROMPTS: rows}


def _check_stream(stream: Stream) -> None:
    """Refuses streams that are no prompts, or have options of a loss that GRPO has not."""
    for option in ("data_collator", "compute_loss_func", "head", "label_names", "batches", "distinct_by"):
        if getattr(stream, option) is not None:
            raise InvalidValueError(
                option=option, stream=stream.name, expected="left out for prompts", found=getattr(stream, option)
            )
    if stream.is_iterable:
        hint = "Load it, or take a part: datasets.Dataset.from_list([*dataset.take(10_000)])."
        expected, found = "a data set with a length", type(stream.dataset).__name__
        raise InvalidTypeError(option="dataset", stream=stream.name, expected=expected, found=found, hint=hint)
    columns = () if stream.is_memory else tuple(first_sample(stream))
    if not stream.is_memory and "prompt" not in columns:
        hint = "Rename the column, or set preprocess."
        expected = "'prompt' and any others"
        raise InvalidValueError(option="columns", stream=stream.name, expected=expected, found=[*columns], hint=hint)
    if STREAM in columns:
        hint = f"Rename it: reward functions get the name of the stream as {STREAM!r}."
        expected = f"any but {STREAM!r}"
        raise InvalidValueError(option="columns", stream=stream.name, expected=expected, found=[*columns], hint=hint)


def rows_in(batch: Any) -> list[dict[str, Any]]:
    """Returns the rows of a batch, or rows as they are."""
    rows: list[dict[str, Any]] = batch[PROMPTS] if isinstance(batch, Mapping) else batch
    return rows


def completed(rows: Sequence[Mapping[str, Any]], names: Sequence[str | None], times: int = 1) -> list[dict[str, Any]]:
    """Returns rows as TRL takes them: each as often as it is completed, all with the same columns.

    Args:
        rows: The prompts.
        names: The stream of each; `None` for none.
        times: Completions of each.
    """
    columns = {name: None for row in rows for name in row}
    whole = [{**columns, **row, STREAM: name} for row, name in zip(rows, names, strict=True)]
    return [dict(row) for row in whole for _ in range(times)]


class Rounds:
    """Trains rounds: generates once, and makes all updates of a round.

    A step of the mixture is a round. Its last update is that of the Trainer's loop; those before it, if completions are
    used for several (`num_iterations`, or more `steps_per_generation` than accumulated), are made here.

    Args:
        trainer: The trainer, after the construction of its parent class.
    """

    def __init__(self, trainer: Any):
        self._trainer, args = trainer, trainer.args
        self._accumulated: int = args.gradient_accumulation_steps
        self._passes: int = args.steps_per_generation * args.num_iterations
        self.num_prompts = args.generation_batch_size // args.num_generations
        for option, total, part in (
            ("gradient_accumulation_steps", self._passes, self._accumulated),
            ("generation_batch_size", self.num_prompts, args.world_size),
        ):
            if total % part:
                what = ("forwards of a round", "of an update") if total is self._passes else ("prompts", "ranks")
                expected = f"such that the {total} {what[0]} are a multiple of the {part} {what[1]}"
                raise InvalidValueError(option=option, expected=expected, found=getattr(args, option))

    def train(self, step: Callable[..., Tensor], model: nn.Module, rows: list[Any], num_items: Any) -> Tensor:
        """Trains a round; returns the mean loss of its updates.

        Args:
            step: The training step of TRL, of a part of the completions.
            model: The model as it is trained.
            rows: This rank's rows.
            num_items: As for `step`.
        """
        trainer, accumulated, losses = self._trainer, self._accumulated, list[Tensor]()
        accelerator, args = trainer.accelerator, trainer.args
        begin_round(trainer, self._passes)
        with (
            attributes_held(args, gradient_accumulation_steps=accumulated),
            attributes_held(trainer, current_gradient_accumulation_steps=accumulated),
        ):
            for number in range(1, self._passes + 1):
                ends_update = number % accumulated == 0
                synchronise_gradients(accelerator, ends_update)
                with contextlib.nullcontext() if ends_update else accelerator.no_sync(model=model):
                    losses.append(step(model, rows, num_items))
                if ends_update and number < self._passes:
                    self._update(model)
        return torch.stack(losses).sum() * (accumulated / self._passes)

    def _update(self, model: nn.Module) -> None:
        trainer = self._trainer
        if trainer.args.max_grad_norm:
            trainer.accelerator.clip_grad_norm_(model.parameters(), trainer.args.max_grad_norm)
        trainer.optimizer.step()
        model.zero_grad()
