"""The samples of a trainer's streams as its model gets them: their columns, collators and heads."""

import contextlib
import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import datasets
from transformers import Trainer
from transformers.utils import logging

from mixer.loading.collate import Columns, StreamSpecifics, collates_without_randomness
from mixer.loading.preprocessing import preprocessed
from mixer.mixture.stream import Stream
from mixer.mixture.streams import read_from
from mixer.models.heads import tasks_of
from mixer.models.inputs import TASK
from mixer.models.labels import LABEL_COLUMNS, needs_labels
from mixer.run import hf_compat
from mixer.utils.errors import InvalidValueError
from mixer.utils.random_state import seeded
from mixer.utils.user_code import module_of

logger = logging.get_logger(__name__)


class LoadingRules:
    """How a trainer loads, where a drop-in class may decide otherwise.

    Args:
        trainer: The trainer.
        max_samples: Maximum samples of a micro-batch; `None` for that of the training arguments.

    Attributes:
        compares_columns: Whether samples that are collated together need the same columns.
    """

    compares_columns = True

    def __init__(self, trainer: Trainer, max_samples: int | None = None):
        self._trainer, self._max_samples = trainer, max_samples
        self.own_loader: Any = None  # that of the trainer's class, whose collator and options for workers hold
        self.keeps_columns = False  # as it does

    @property
    def most_samples(self) -> int:
        """Maximum samples of a micro-batch, until memory runs out."""
        return hf_compat.train_batch_size(self._trainer) if self._max_samples is None else self._max_samples

    @property
    def data_collator(self) -> Any:
        """The collator of training, unless the loader has its own."""
        return self._trainer.data_collator

    @property
    def removes_columns(self) -> bool:
        """Whether columns that the model does not take are removed before collation."""
        return bool(self._trainer.args.remove_unused_columns) and not self.keeps_columns

    def worker_option(self, name: str) -> Any:
        """Returns an option of a DataLoader, of the trainer's own loader or of the training arguments."""
        if self.own_loader is not None:
            return getattr(self.own_loader, name)
        return getattr(self._trainer.args, f"dataloader_{name}", None)

    def smaller_cap(self, sizes: str) -> str:
        """Describes the arguments that lower `most_samples`.

        Args:
            sizes: The batch size, as a user writes it.

        Returns:
            A text in which `{}` stands for the number of samples.
        """
        if self._max_samples is not None:
            return "max_samples_per_micro_batch={}; the total stays"
        return f"per_device_train_batch_size={{}}, with batch_size={sizes} to keep the total"


class StreamSamples:
    """Reads and collates the samples of a trainer's streams.

    Args:
        trainer: The trainer.
        streams: The streams.
        rules: How the trainer loads.

    Raises:
        ValueError: If the model lacks the head of a stream.
    """

    def __init__(self, trainer: Trainer, streams: Sequence[Stream], rules: LoadingRules):
        self.trainer, self.streams, self.rules = trainer, streams, rules
        model: Any = trainer.model
        # Of each stream: the argument `task` of a model with several heads.
        self.tasks = tasks_of(model, list(streams))
        hf_compat.count_as_columns([name for stream in streams for name in stream.label_names or ()], trainer)
        forms = {number: self._form(stream, self.tasks[number]) for number, stream in enumerate(streams)}
        # Collators and heads of single streams.
        self.specifics = {number: form for number, form in forms.items() if form != StreamSpecifics()}

    def _form(self, stream: Stream, task: str | None) -> StreamSpecifics:
        if stream.data_collator is None:
            return StreamSpecifics(None, task)
        return StreamSpecifics(self._collator(stream.data_collator, f"stream {stream.name!r}"), task)

    def _collator(self, collator: Any, description: str) -> Any:
        """Returns a collator that removes what samples still have of columns that the model does not take."""
        if self.columns_are_removed or not self.rules.removes_columns:
            return collator
        return hf_compat.collator_removing_columns(self.trainer, collator, description)

    @property
    def data_collator(self) -> Any:
        """The collator of training, before columns are removed."""
        own = self.rules.own_loader
        return self.rules.data_collator if own is None else own.collate_fn

    @property
    def common_collator(self) -> Any:
        """The collator of the streams that have none of their own."""
        return self._collator(self.data_collator, "training")

    @property
    def columns_are_removed(self) -> bool:
        """Whether all samples are loaded without unused columns; memories keep what they received."""
        return not any(map(is_made, self.streams))

    @property
    def taken_columns(self) -> list[str] | None:
        """The columns that the model takes; `None` if all are passed on."""
        return hf_compat.signature_columns(self.trainer) if self.rules.removes_columns else None

    def datasets(self) -> list[Any]:
        """Returns the data set of each stream, without columns that the model does not take."""
        lasting = {stream.name: self._with_model_columns(stream) for stream in self.streams if not stream.is_memory}
        return read_from(self.streams, lasting)

    def _with_model_columns(self, stream: Stream) -> Any:
        if is_made(stream):
            return preprocessed(stream.dataset, stream.preprocess)
        columns, taken = stream.dataset.column_names, self.taken_columns
        missing = [name for name in stream.label_names or () if name not in columns]
        if missing and stream.data_collator is None:
            text = f"Stream {stream.name!r}: label_names contains {missing}, but the columns are {columns}."
            raise InvalidValueError(text, option="label_names", stream=stream.name)
        if taken is None:
            return stream.dataset
        if not set(taken) & set(columns):
            text = f"Stream {stream.name!r}: the model takes {taken}, none of its columns {columns}. Rename them, set "
            text += "preprocess, or remove_unused_columns=False for a collator that creates inputs."
            raise InvalidValueError(text, option="columns", stream=stream.name)
        return hf_compat.without_unused_columns(self.trainer, stream.dataset, f"training stream {stream.name!r}")

    def model_columns(self, columns: Columns) -> dict[str, Any]:
        """Applies the default collator and the removal of unused columns to whole columns."""
        known: Any = columns if self.taken_columns is None else self.taken_columns
        inputs = {name: values for name, values in columns.items() if name in known}
        if "label" in inputs:
            label = inputs.pop("label")
            inputs = {"labels": label.float() if label.is_floating_point() else label.long(), **inputs}
        elif "label_ids" in inputs:
            inputs["labels"] = inputs.pop("label_ids")
        return inputs

    # ---- Trials ----

    def trial_batch(self, number: int, sample: Any, times: int = 1) -> Mapping[str, Any] | None:
        """Makes a micro-batch of one sample, so many times; `None` if that fails, as is reported when it is used.

        Args:
            number: The stream; -1 for none.
            sample: The sample.
            times: How often it stands in the micro-batch.
        """
        form = self.specifics.get(number, StreamSpecifics())
        collator, inputs = form.collator or self.common_collator, None
        called = "no stream" if number < 0 else f"stream {self.streams[number].name!r}"
        with try_user_code(f"A sample of {called} cannot be collated.", not collates_without_randomness(collator)):
            inputs = collator([copy.copy(sample) for _ in range(times)])  # some remove columns from their input
        if not isinstance(inputs, Mapping):
            return None
        return inputs if form.task is None else {**inputs, TASK: form.task}

    def trial_batch_like(self, stream: Stream | None, sample: Any) -> Mapping[str, Any] | None:
        """Makes a micro-batch of one sample, as of a stream; `None` if that fails."""
        return self.trial_batch(-1 if stream is None else self.streams.index(stream), sample)

    def check_not_raw(
        self, called: str, dataset: Any, stream: Stream | None, sample: Any, inputs: Mapping[str, Any] | None
    ) -> None:
        """Refuses a data set of which nothing but labels would reach the model, such as one of raw texts.

        Args:
            called: What the data set is called.
            dataset: The data set, before any column was removed.
            stream: The stream that it is treated like.
            sample: One of its samples.
            inputs: The micro-batch of the sample; `None` if it could not be made.

        Raises:
            ValueError: With the columns and the way out.
        """
        collator = getattr(stream, "data_collator", None) or self.data_collator
        # A user's collator that fails on one sample may succeed on several.
        is_sure = inputs is not None or (isinstance(sample, Mapping) and goes_by_first(collator))
        model = self.trainer.model
        if not is_sure or model is None or not needs_labels(model):
            return
        known, taken = sample if inputs is None else inputs, self.taken_columns
        names = [name for name in known if inputs is not None or taken is None or name in taken]
        found = [name for name in names if not isinstance(known[name], str)]
        if not set(found) - {TASK, "labels", *LABEL_COLUMNS}:
            columns = getattr(dataset, "column_names", None) or list(known)
            text = (
                f"{called}: of its columns {columns} nothing reaches the model but {found}. Texts have to be "
                "tokenized, as in dataset.map(lambda row: tokenizer(row['text'], truncation=True)), or by the stream's "
                "preprocess or data_collator."
            )
            raise InvalidValueError(text, option="columns", stream=None if stream is None else stream.name)


@contextlib.contextmanager
def try_user_code(failure: str, seeds: bool = True) -> Iterator[None]:
    """Tries the user's code, without a change of the random numbers of the run; only logs a failure.

    Args:
        failure: What is logged.
        seeds: Whether to seed and restore the generators, a tenth of a millisecond: not where nothing draws, or within
            code that does.
    """
    with seeded(0) if seeds else contextlib.nullcontext():
        try:
            yield
        except Exception:
            logger.debug(failure, exc_info=True)


def is_made(stream: Stream) -> bool:
    """Whether code creates the samples, perhaps with different columns."""
    return not isinstance(stream.dataset, datasets.Dataset) or stream.preprocess is not None


def goes_by_first(collator: Any) -> bool:
    """Says whether a collator is one of transformers, which all use the columns of the first sample."""
    return module_of(collator).startswith("transformers.data")
