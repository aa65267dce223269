"""TRL's trainers: data sets prepared stream by stream, and TRL's own metrics."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import datasets
from torch import nn
from transformers import Trainer
from transformers.utils import logging

from mixer.loading.preprocessing import Preprocess, preprocessed_now
from mixer.mixture.stream import Stream
from mixer.mixture.streams import combine
from mixer.models.trl_metrics import gathering, rows_of_ranks
from mixer.run.class_checks import check_loss, check_prepared_elsewhere
from mixer.run.hooks import ForwardResult, StepHook

_IMAGES = {"image", "images"}
# SFTTrainer reads a stream with all columns of one of these, or with the column dataset_text_field.
_SFT_FORMATS = ({"messages"}, {"conversations"}, {"prompt", "completion"}, {"input_ids"})
# Columns, and fields of turns, that say what is read or learned, and that SFTTrainer drops.
_DROPPED_COLUMNS = ("system", "system_prompt", "functions", "documents", "weight", "weights", "sample_weight")
_DROPPED_FIELDS = ("weight", "train", "training", "function_call")

logger = logging.get_logger(__name__)


def check_kinds(streams: Sequence[Stream], trainer: str) -> None:
    """Refuses streams that a trainer which prepares data sets does not take, or that do not go together.

    Args:
        streams: The streams without memories.
        trainer: Name of the trainer's class.

    Raises:
        TypeError: If one is no data set of the package datasets.
        ValueError: If only some have images.
    """
    for stream in streams:
        if not isinstance(stream.dataset, (datasets.Dataset, datasets.IterableDataset)):
            raise TypeError(
                f"Stream {stream.name!r}: {trainer} takes a datasets.Dataset or IterableDataset, got "
                f"{type(stream.dataset).__name__}. Convert it, with Dataset.from_list or from_generator."
            )
    with_images = [stream.name for stream in streams if _IMAGES & first_sample(stream).keys()]
    if 0 < len(with_images) < len(streams):
        without = [stream.name for stream in streams if stream.name not in with_images]
        raise ValueError(
            f"Streams {with_images} have images and {without} have none: {trainer} uses a processor for all streams or "
            f"for none. Train them in two runs, or remove the images."
        )


def check_sft(stream: Stream, args: Any, formats: bool) -> None:
    """Refuses a stream that SFTTrainer would fail on, or train in an unwanted way.

    Args:
        stream: The stream.
        args: The trainer's `SFTConfig`.
        formats: Whether there is a formatting function.

    Raises:
        ValueError: With the stream, its columns and the required ones.
    """
    from trl.data_utils import is_conversational, is_conversational_from_value

    sample = first_sample(stream)
    columns, text = set(sample), args.dataset_text_field
    if not formats and not any(needed <= columns for needed in (*_SFT_FORMATS, {text})):
        raise ValueError(
            f"Stream {stream.name!r} has the columns {sorted(columns)}, but SFTTrainer needs 'messages', 'prompt' and "
            f"'completion', {text!r} (dataset_text_field) or 'input_ids'. Rename some, or pass a formatting_func."
        )
    if args.assistant_only_loss and not (is_conversational(sample) or is_conversational_from_value(sample)):
        raise ValueError(
            f"assistant_only_loss=True: stream {stream.name!r} is no conversation (its columns are {sorted(columns)}): "
            "all of it would count. Convert it to 'messages', or leave the option out."
        )
    if args.completion_only_loss and not columns & {"completion", "labels"}:
        raise ValueError(
            f"completion_only_loss=True: stream {stream.name!r} has no completions (its columns are {sorted(columns)}"
            f"), so its whole text would count for the loss. Convert it to 'prompt' and 'completion', or leave "
            f"completion_only_loss out: each stream then decides for itself."
        )
    if not formats and "input_ids" not in columns and (dropped := _dropped(sample)):
        logger.warning(
            "Stream %r: SFTTrainer drops %s, so that it changes nothing. Put a system prompt into the messages, rename "
            "'functions' to 'tools', take out what is not to be learned; then remove the column.",
            *(stream.name, " and ".join(dropped)),
        )


def _dropped(sample: Mapping[str, Any]) -> list[str]:
    """Names the columns of a sample, and the fields of its turns, that SFTTrainer drops."""
    turns = [
        turn for name in ("messages", "conversations", "prompt", "completion") for turn in _turns(sample.get(name))
    ]
    fields = [name for name in _DROPPED_FIELDS if any(name in turn for turn in turns)]
    columns = [name for name in _DROPPED_COLUMNS if name in sample]
    return [*(f"the column {name!r}" for name in columns), *(f"the field {name!r} of turns" for name in fields)]


def _turns(value: Any) -> list[Any]:
    return [turn for turn in value if isinstance(turn, Mapping)] if isinstance(value, list) else []


def first_sample(stream: Stream) -> dict[str, Any]:
    """Reads the first sample of a stream, from which TRL detects the format.

    Raises:
        ValueError: If the stream is empty.
    """
    sample: dict[str, Any] | None = next(iter(stream.dataset), None)
    if sample is None:
        raise ValueError(f"Stream {stream.name!r}: the data set is empty.")
    return sample


class TRLMetrics(StepHook):
    """Keeps TRL's own metrics as they would be without micro-batches and padding.

    Args:
        trainer: One of TRL's trainers.
        tokens: Returns the tokens of the present step, over all ranks.
    """

    def __init__(self, trainer: Trainer, tokens: Callable[[], int]):
        self._trainer, self._tokens = trainer, tokens
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
        self._num_tokens += self._tokens()
        metrics = vars(self._trainer)
        metrics["_total_train_tokens"] = self._num_tokens
        metrics["_metrics"]["train"]["num_tokens"] = [self._num_tokens]


class StreamPreparation:
    """Gives a trainer's constructor one data set for all streams, and prepares each stream as it prepares that one.

    Args:
        trainer: The trainer, before its construction.
        streams: Its streams.
        epoch_length: Samples in an epoch, if the user has set it.
    """

    def __init__(self, trainer: Any, streams: Sequence[Stream], epoch_length: int | None):
        self._trainer, self.streams, self._epoch_length = trainer, list(streams), epoch_length
        self.combined: Any = None  # all streams as a single data set
        self._stand_in: Any = None  # the constructor's argument instead, until it is prepared
        self._preprocess_of: dict[str, Preprocess | None] = {}  # of the streams, before they were prepared

    def stand_in(self, prepares: bool) -> Any:
        """Returns the training data for the parent's constructor.

        Args:
            prepares: Whether the parent prepares data sets.

        Returns:
            The combined streams; if the parent prepares data sets, the first stream's.
        """
        if not self.streams:
            return None
        if prepares:
            lasting = [stream for stream in self.streams if not stream.is_memory]
            check_kinds(lasting, type(self._trainer).__name__)
            self._stand_in = lasting[0].dataset
        else:
            check_prepared_elsewhere(type(self._trainer))
            self._stand_in = self.combined = self._combine()
        return self._stand_in

    def _combine(self) -> Any:
        return combine(self.streams, [stream.dataset for stream in self.streams], self._epoch_length)

    def take_stand_in_back(self) -> list[Stream]:
        """Replaces the stand-in by the streams if the parent did not prepare it; returns the streams."""
        if self.combined is None and self.streams:  # images, or dataset_kwargs={"skip_prepare_dataset": True}
            self.combined = self._combine()
            check_loss(self._trainer)
        if self._stand_in is not None and self._trainer.train_dataset is self._stand_in:
            self._trainer.train_dataset = self.combined
        self._stand_in = None
        return self.streams

    def prepare(self, prepare: Callable[..., Any], dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Prepares a data set as the parent does; for the stand-in, each of the streams."""
        call = inspect.signature(prepare).bind(dataset, *args, **kwargs)
        if self._stand_in is None or dataset is not self._stand_in:
            name = call.arguments.get("dataset_name")
            if isinstance(dataset, datasets.Dataset) and not len(dataset):
                raise ValueError(f"eval_dataset: the data set {name!r} is empty. Leave it out, or add samples.")
            try:
                return prepare(preprocessed_now(dataset, self._preprocess_of.get(str(name))), *args, **kwargs)
            except Exception as error:
                error.add_note(f"While preparing the evaluation set {name!r}.")
                raise
        check_loss(self._trainer)
        self._stand_in = None  # an evaluation set may be the same object
        self._preprocess_of = {stream.name: stream.preprocess for stream in self.streams}
        self._replace_streams(lambda stream: preprocessed_now(stream.dataset, stream.preprocess))
        self._replace_streams(partial(self._prepare_stream, call, prepare))
        return self.combined

    def _prepare_stream(self, call: inspect.BoundArguments, prepare: Callable[..., Any], stream: Stream) -> Any:
        """Prepares a stream's data set with the call for the stand-in."""
        arguments = call.arguments
        arguments[next(iter(arguments))] = stream.dataset
        if "dataset_name" in arguments:
            arguments["dataset_name"] = stream.name
        name = type(self._trainer).__name__
        with self._completions_learned_as_by(stream, arguments):
            try:
                prepared = prepare(*call.args, **call.kwargs)
            except (AttributeError, KeyError, RuntimeError, TypeError, ValueError) as error:
                if isinstance(error, RuntimeError) and arguments["args"].world_size > 1:
                    error.add_note(f"While preparing the stream {stream.name!r}.")
                    raise  # it may come from another rank, without a word about this stream
                raise ValueError(
                    f"Stream {stream.name!r}: {name} cannot prepare the columns {sorted(first_sample(stream))}: "
                    f"{type(error).__name__}: {str(error).rstrip('.')}. Convert it to a format that {name} takes?"
                ) from error
        if isinstance(prepared, datasets.Dataset) and not len(prepared):
            raise ValueError(
                f"Stream {stream.name!r}: {name} has filtered out all of its {len(stream.dataset)} samples, as too "
                f"long or without a label. Raise max_length, or leave the stream out."
            )
        return prepared

    @contextlib.contextmanager
    def _completions_learned_as_by(self, stream: Stream, arguments: Mapping[str, Any]) -> Iterator[None]:
        """Decides per stream whether prompts count for the loss; SFTTrainer decides by the first stream."""
        trainer = self._trainer
        if not hasattr(trainer, "completion_only_loss"):
            yield
            return
        args, is_any = arguments["args"], trainer.completion_only_loss
        check_sft(stream, args, arguments.get("formatting_func") is not None)
        if args.completion_only_loss is None:
            trainer.completion_only_loss = {"prompt", "completion"} <= first_sample(stream).keys()
        yield
        # Evaluation sets come later: those with prompts are treated like streams with prompts.
        trainer.completion_only_loss = trainer.completion_only_loss or is_any

    def precompute(self, compute: Callable[..., Any], dataset: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Computes the reference model's log-probabilities, for each stream if the data set stands for all."""
        if dataset is not self.combined:
            return compute(dataset, name, *args, **kwargs)
        self._replace_streams(lambda stream: compute(stream.dataset, stream.name, *args, **kwargs))
        return self.combined

    def all_named(self, named: dict[str, Any]) -> dict[str, Any]:
        """Returns named data sets with all streams in place of the stand-in."""
        all_named = {name: dataset for name, dataset in named.items() if dataset is not self._stand_in}
        if len(all_named) < len(named):
            all_named |= {stream.name: stream.dataset for stream in self.streams if not stream.is_memory}
        return all_named

    def _replace_streams(self, prepare: Callable[[Stream], Any]) -> None:
        """Replaces the streams' data sets by prepared ones; memories store prepared samples in training."""
        self.streams = [
            stream if stream.is_memory else replace(stream, dataset=prepare(stream), preprocess=None)
            for stream in self.streams
        ]
        self.combined = self._combine()
