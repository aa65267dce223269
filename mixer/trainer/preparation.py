"""The training data that a trainer's constructor gets, and data sets that TRL's trainers prepare, stream by stream."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import datasets

from mixer.loading.preprocessing import Preprocess, preprocessed_now
from mixer.mixture.stream import Stream
from mixer.mixture.streams import combine
from mixer.run.class_checks import check_loss, check_prepared_elsewhere
from mixer.trainer.checks.trl_streams import (
    check_images,
    check_kinds,
    check_sft,
    check_template,
    first_sample,
    has_images,
)
from mixer.trainer.images import collated_together, stand_in_of
from mixer.utils.errors import InvalidValueError, wrong_value


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
        self._has_images = False

    def stand_in(self, prepares: bool, args: Any, tokenizer: Any) -> Any:
        """Returns the training data for the parent's constructor.

        Args:
            prepares: Whether the parent prepares data sets.
            args: The training arguments.
            tokenizer: The tokenizer or processor; `None` if the parent loads it.

        Returns:
            The combined streams; if the parent prepares data sets, the first stream's.
        """
        if not self.streams:
            return None
        if prepares:
            check_template(args, tokenizer)
            lasting = [stream for stream in self.streams if not stream.is_memory]
            check_kinds(lasting, type(self._trainer).__name__)
            self._stand_in = lasting[0].dataset
            if seen := [stream for stream in lasting if has_images(stream)]:
                check_images(lasting, self._trainer, args, tokenizer)
                self._has_images, self._stand_in = True, stand_in_of(seen[0])
        else:
            check_prepared_elsewhere(type(self._trainer))
            self._stand_in = self.combined = self._combine()
        return self._stand_in

    def _combine(self) -> Any:
        return combine(self.streams, [stream.dataset for stream in self.streams], self._epoch_length)

    def take_stand_in_back(self) -> list[Stream]:
        """Replaces the stand-in by the streams if the parent did not prepare it; returns the streams."""
        if self._has_images:
            self.streams = collated_together(self.streams, self._trainer)
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
                raise wrong_value("eval_dataset", f": the data set {name!r} is empty. Leave it out, or add samples.")
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
                text = f"Stream {stream.name!r}: {name} cannot prepare the columns {sorted(first_sample(stream))}: "
                text += f"{type(error).__name__}: {str(error).rstrip('.')}. Convert it to a format that {name} takes?"
                raise InvalidValueError(text, option="columns", stream=stream.name) from error
        if isinstance(prepared, datasets.Dataset) and not len(prepared):
            text = f"Stream {stream.name!r}: {name} has filtered out all of its {len(stream.dataset)} samples, as too "
            text += "long or without a label. Raise max_length, or leave the stream out."
            raise InvalidValueError(text, option="max_length", stream=stream.name)
        return prepared

    @contextlib.contextmanager
    def _completions_learned_as_by(self, stream: Stream, arguments: Mapping[str, Any]) -> Iterator[None]:
        """Decides per stream whether prompts count for the loss; SFTTrainer decides by the first stream."""
        trainer = self._trainer
        if not hasattr(trainer, "completion_only_loss"):
            yield
            return
        args, is_any = arguments["args"], trainer.completion_only_loss
        template, tokenizer = getattr(trainer, "chat_template", None), arguments["processing_class"]
        render = partial(tokenizer.apply_chat_template, chat_template=template, tokenize=False)
        check_sft(stream, args, arguments.get("formatting_func") is not None, render)
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
