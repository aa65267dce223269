"""TRL's trainers: data sets prepared stream by stream, and what their steps log."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import datasets
from torch import Tensor, nn
from transformers import Trainer
from transformers.trainer_utils import unwrap_peft_model

from mixer.gradients.probe.plain_forward import is_fused
from mixer.loading.preprocessing import Preprocess, preprocessed_now
from mixer.loading.step import MicroBatch, StepBatch
from mixer.mixture.plan import Plan
from mixer.mixture.stream import Stream, combine
from mixer.models.trl import gathering, metrics_restored, rows_of_ranks
from mixer.trainer.checks import check_loss, check_prepared_elsewhere
from mixer.trainer.observers.reference import ComparingMixin

_IMAGES = {"image", "images"}
# SFTTrainer reads a stream that has all of one of these; a column of its own for plain text can be named beside.
_SFT_FORMATS = ({"messages"}, {"conversations"}, {"prompt", "completion"}, {"input_ids"})


def check_kinds(streams: Sequence[Stream], trainer: str) -> None:
    """Refuses streams of other kinds than a trainer that prepares data sets takes, or of kinds that do not go together.

    Args:
        streams: The streams that are no memories.
        trainer: Name of the trainer's class.

    Raises:
        TypeError: If one is no data set of the package datasets.
        ValueError: If only some have images.
    """
    for stream in streams:
        if not isinstance(stream.dataset, (datasets.Dataset, datasets.IterableDataset)):
            raise TypeError(
                f"Stream {stream.name!r}: {trainer} prepares its data sets, and takes datasets.Dataset or "
                f"datasets.IterableDataset, got {type(stream.dataset).__name__}. Dataset.from_list or "
                "Dataset.from_generator make one."
            )
    with_images = [stream.name for stream in streams if _IMAGES & first_sample(stream).keys()]
    if 0 < len(with_images) < len(streams):
        without = [stream.name for stream in streams if stream.name not in with_images]
        raise ValueError(
            f"Streams {with_images} have images and {without} have none: {trainer} collates either with a processor or "
            "without, for all streams alike. Train them in two runs, or leave the images out."
        )


def check_sft(stream: Stream, args: Any, formats: bool) -> None:
    """Refuses a stream that SFTTrainer would fail on, or train in a way that was not asked for.

    Args:
        stream: The stream.
        args: The trainer's `SFTConfig`.
        formats: Whether a formatting function makes text of its samples.

    Raises:
        ValueError: With the stream, its columns and what it needs.
    """
    sample = first_sample(stream)
    columns, text = set(sample), args.dataset_text_field
    if not formats and not any(needed <= columns for needed in (*_SFT_FORMATS, {text})):
        raise ValueError(
            f"Stream {stream.name!r} has the columns {sorted(columns)}, and SFTTrainer needs 'messages', 'prompt' and "
            f"'completion', {text!r} (dataset_text_field) or 'input_ids'. Rename its columns, or give a "
            "formatting_func."
        )
    if args.assistant_only_loss and not _is_conversational(sample):
        raise ValueError(
            f"assistant_only_loss=True: stream {stream.name!r} is no conversation, with the columns {sorted(columns)}, "
            "and would be trained on as a whole. Bring it into 'messages', or leave assistant_only_loss at False."
        )


def learns_completions(stream: Stream) -> bool:
    """Says whether SFTTrainer learns a stream's completions alone, where the user has not said so.

    Args:
        stream: The stream.

    Returns:
        Whether its samples are prompts and completions.
    """
    return {"prompt", "completion"} <= first_sample(stream).keys()


def first_sample(stream: Stream) -> dict[str, Any]:
    """Reads the first sample of a stream, by which TRL tells formats apart.

    Args:
        stream: The stream.

    Returns:
        The sample.

    Raises:
        ValueError: If there is none.
    """
    sample: dict[str, Any] | None = next(iter(stream.dataset), None)
    if sample is None:
        raise ValueError(f"Stream {stream.name!r}: the data set is empty.")
    return sample


def _is_conversational(sample: dict[str, Any]) -> bool:
    from trl.data_utils import is_conversational, is_conversational_from_value

    return bool(is_conversational(sample) or is_conversational_from_value(sample))


class TRLStepsMixin(ComparingMixin):
    """A Trainer whose steps leave TRL's own figures as they would be without micro-batches and padding."""

    _total_train_tokens: int

    @property
    def _has_metrics(self) -> bool:
        """Whether this is one of TRL's trainers, or keeps metrics as they do."""
        return isinstance(getattr(self, "_metrics", None), dict)

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_for_training(*args, **kwargs)
        if self._has_metrics and self.args.world_size > 1 and self._obstacle is None:
            self._obstacle = f"{type(self).__name__} gathers metrics from all ranks in every loss"
        return prepared

    def _take_reference(self, reference: nn.Module | None) -> None:
        super()._take_reference(reference)
        own, other = (unwrap_peft_model(one) for one in (self.model, self._reference_model))  # type: ignore[no-untyped-call]
        if other is not None and _has_fused_head(own) and not _has_fused_head(other):
            from trl.trainer.utils import add_fused_lm_head

            add_fused_lm_head(other, outputs=("log_probs", "entropy", "is_top1"))  # what SFTTrainer asks for

    @contextlib.contextmanager
    def _trying(self) -> Iterator[None]:
        with metrics_restored(self), super()._trying():
            yield

    def compute_loss_context_manager(self) -> contextlib.ExitStack:
        """Has an auxiliary loss averaged over a step's micro-batches; see `Trainer.compute_loss_context_manager`."""
        stack = super().compute_loss_context_manager()
        if self._mixing is not None and getattr(self, "aux_loss_enabled", False):
            # SFTTrainer divides it by this number, which for the Trainer is what the whole loss is divided by.
            divide_by = getattr(self, "current_gradient_accumulation_steps", 1)
            self.current_gradient_accumulation_steps = max(len(self._micro_items), 1)
            stack.callback(setattr, self, "current_gradient_accumulation_steps", divide_by)
        return stack

    def _train_micro_batch(
        self, model: nn.Module, micro: MicroBatch, own_items: int, plan: Plan, num_items: Any, sums: Tensor
    ) -> Tensor:
        if not self._has_metrics or self.args.world_size == 1:
            return super()._train_micro_batch(model, micro, own_items, plan, num_items, sums)
        with gathering(self, rows_of_ranks(self.accelerator, not micro.is_padding)):
            return super()._train_micro_batch(model, micro, own_items, plan, num_items, sums)

    def _train_step(
        self, model: nn.Module, batch: StepBatch, num_items: Any, is_synchronised: bool = True
    ) -> tuple[Tensor, Tensor]:
        before = getattr(self, "_total_train_tokens", 0)
        result = super()._train_step(model, batch, num_items, is_synchronised)
        if self._has_metrics:  # without those of ranks that had no samples, or of a step that was repeated
            self._total_train_tokens = before + int(self._step_counts.tokens.sum())
            vars(self)["_metrics"]["train"]["num_tokens"] = [self._total_train_tokens]
        return result


def _has_fused_head(model: nn.Module) -> bool:
    forward = model.__dict__.get("forward")
    return forward is not None and is_fused(forward)


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
