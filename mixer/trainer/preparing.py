"""Has a trainer that prepares its data set (TRL's tokenise, truncate and pack) prepare that of each stream."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import datasets
from transformers import Trainer

from mixer.loading.preprocessing import Preprocess, preprocessed_now
from mixer.mixture.stream import Stream
from mixer.mixture.streams import combine
from mixer.trainer.mixable import check_loss, check_prepared_elsewhere
from mixer.trainer.stream_formats import check_kinds, check_sft, first_sample, learns_completions


class PreparingMixin(Trainer):
    """A Trainer whose constructor may prepare data sets; it is given one stream's, which stands for all of them."""

    streams: list[Stream]
    _combined: Any = None  # what stands for all streams where a single data set is asked for
    _stand_in: Any = None  # what the constructor is given in its place, until it has prepared it
    _epoch_length: int | None = None
    _preprocess_of: Mapping[str, Preprocess | None] = {}  # of the streams, before they were prepared
    completion_only_loss: bool  # of SFTTrainer

    def _stand_for_streams(self, epoch_length: int | None) -> Any:
        """Gives what the parent's constructor is to take for its training data.

        Args:
            epoch_length: Samples of an epoch, if the user has said so.

        Returns:
            The streams combined; where the parent prepares data sets, the first one's.
        """
        self._epoch_length = epoch_length
        if not self.streams:
            return None
        if not hasattr(super(), "_prepare_dataset"):
            check_prepared_elsewhere(type(self))
            self._stand_in = self._combined = self._combine()
            return self._combined
        lasting = [stream for stream in self.streams if not stream.is_memory]
        check_kinds(lasting, type(self).__name__)
        self._stand_in = lasting[0].dataset
        return self._stand_in

    def _combine(self) -> Any:
        return combine(self.streams, [stream.dataset for stream in self.streams], self._epoch_length)

    def _take_stand_in_back(self) -> None:
        """Puts the streams in the place of the data set that stood for them, where the parent has left it as it was."""
        if self._combined is None and self.streams:  # images, or dataset_kwargs={"skip_prepare_dataset": True}
            self._combined = self._combine()
            check_loss(self)
        if self._stand_in is not None and self.train_dataset is self._stand_in:
            self.train_dataset = self._combined
        self._stand_in = None

    def _prepare_dataset(self, dataset: Any, *args: Any, **kwargs: Any) -> Any:
        """Prepares a data set as the parent does; in the place of the one that stands for all streams, each of them."""
        prepare = super()._prepare_dataset  # type: ignore[misc]  # only trainers that have it call this
        call = inspect.signature(prepare).bind(dataset, *args, **kwargs)
        if self._stand_in is None or dataset is not self._stand_in:
            name = call.arguments.get("dataset_name")
            if isinstance(dataset, datasets.Dataset) and not len(dataset):
                raise ValueError(f"eval_dataset: the data set {name!r} is empty. Leave it out, or give it samples.")
            with _named_in_errors(f"evaluation set {name!r}"):
                return prepare(preprocessed_now(dataset, self._preprocess_of.get(str(name))), *args, **kwargs)
        check_loss(self)
        self._stand_in = None  # an evaluation set may be the same object
        self._preprocess_of = {stream.name: stream.preprocess for stream in self.streams}
        self._replace_streams(_preprocessed)
        self._replace_streams(partial(self._prepare_stream, call, prepare))
        return self._combined

    def _prepare_stream(self, call: inspect.BoundArguments, prepare: Callable[..., Any], stream: Stream) -> Any:
        """Prepares a stream's data set by the call that would have prepared the one that stands for all."""
        given = call.arguments
        given[next(iter(given))] = stream.dataset
        if "dataset_name" in given:
            given["dataset_name"] = stream.name
        name = type(self).__name__
        with self._completions_learned_as_by(stream, given):
            try:
                prepared = prepare(*call.args, **call.kwargs)
            except RuntimeError as error:  # it may be another rank's, and say nothing about this stream
                error.add_note(f"While the stream {stream.name!r} was prepared.")
                raise
            except (AttributeError, KeyError, TypeError, ValueError) as error:
                raise ValueError(
                    f"Stream {stream.name!r}: {name} cannot prepare its columns {sorted(first_sample(stream))}: "
                    f"{type(error).__name__}: {str(error).rstrip('.')}. Where their format is the reason, give the "
                    f"stream one that {name} takes."
                ) from error
        if isinstance(prepared, datasets.Dataset) and not len(prepared):
            raise ValueError(
                f"Stream {stream.name!r}: nothing is left of its {len(stream.dataset)} samples after {name} has "
                "prepared them: all were filtered out, as too long or without a label. Raise max_length, or leave the "
                "stream out."
            )
        return prepared

    @contextlib.contextmanager
    def _completions_learned_as_by(self, stream: Stream, given: Mapping[str, Any]) -> Iterator[None]:
        """Decides for each stream what SFTTrainer decides by the first one: whether prompts count for its loss."""
        if not hasattr(self, "completion_only_loss"):
            yield
            return
        args, is_any = given["args"], self.completion_only_loss
        check_sft(stream, args, given.get("formatting_func") is not None)
        if args.completion_only_loss is None:
            self.completion_only_loss = learns_completions(stream)
        yield
        # Evaluation sets come later: with a prompt among them, they are of the kind of a stream that has one.
        self.completion_only_loss = self.completion_only_loss or is_any

    def _precompute_ref_logps(self, dataset: Any, name: str, *args: Any, **kwargs: Any) -> Any:
        """Computes the reference model's log-probabilities, of each stream where the data set stands for all."""
        compute = super()._precompute_ref_logps  # type: ignore[misc]  # only trainers that have it call this
        if dataset is not self._combined:
            return compute(dataset, name, *args, **kwargs)
        self._replace_streams(lambda stream: compute(stream.dataset, stream.name, *args, **kwargs))
        return self._combined

    def _reject_skip_prepare_without_labels(self, named: dict[str, Any], *args: Any) -> None:
        """Has SFTTrainer look at the columns of all streams where it would look at the first one's."""
        all_named = {name: dataset for name, dataset in named.items() if dataset is not self._stand_in}
        if len(all_named) < len(named):
            all_named |= {stream.name: stream.dataset for stream in self.streams if not stream.is_memory}
        super()._reject_skip_prepare_without_labels(all_named, *args)  # type: ignore[misc]  # only it calls this

    def _replace_streams(self, prepare: Callable[[Stream], Any]) -> None:
        """Puts prepared data sets in the streams' place; memories take up samples as they are trained."""
        self.streams = [
            stream if stream.is_memory else replace(stream, dataset=prepare(stream), preprocess=None)
            for stream in self.streams
        ]
        self._combined = self._combine()


def _preprocessed(stream: Stream) -> Any:
    return preprocessed_now(stream.dataset, stream.preprocess)


@contextlib.contextmanager
def _named_in_errors(what: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"While the {what} was prepared.")
        raise
