"""The streams as sentence-transformers takes several data sets: a dict, whose names tell their losses and prompts."""

import copy
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import datasets
from sentence_transformers.base.sampler import BatchSamplers, MultiDatasetBatchSamplers
from sentence_transformers.base.trainer import BaseTrainer

from mixer.mixture.stream import Stream
from mixer.run.config import MixingOptions
from mixer.trainer.preparation import StreamPreparation
from mixer.trainer.sentence_transformers.sampled import SampledBatches
from mixer.utils.errors import InvalidTypeError, InvalidValueError

_NAME = "dataset_name"  # the column by which losses and prompts are chosen


class NamedSets(StreamPreparation):
    """Gives the constructor the streams as a `DatasetDict`, and takes them back with their names in a column."""

    def stand_in(self, prepares: bool, args: Any, tokenizer: Any) -> Any:
        """Returns the training data for the parent's constructor; see `StreamPreparation.stand_in`."""
        lasting = [stream for stream in self.streams if not stream.is_memory]
        is_own = isinstance(args, self._trainer.training_args_class)  # others are refused by the constructor
        if is_own and isinstance(args, MixingOptions) and args.one_stream_per is None:
            expected, hint = "'step' or 'micro_batch'", "A batch of these trainers is of one data set."
            raise InvalidValueError(option="one_stream_per", expected=expected, found=None, hint=hint)
        for stream in lasting:
            _check_kind(stream, type(self._trainer).__name__)
        if len(self.streams) < 2 and all(stream.name == "train" for stream in lasting):  # one set, without a name
            self._stand_in = lasting[0].dataset if lasting else None
        else:  # copies, as the constructor sets a transform
            self._stand_in = datasets.DatasetDict({stream.name: copy.copy(stream.dataset) for stream in lasting})
        return self._stand_in

    def take_stand_in_back(self) -> list[Stream]:
        """Takes over the data sets as the constructor has prepared them; returns the streams."""
        trainer, self._stand_in = self._trainer, None
        self.combined = trainer.train_dataset
        _check_samplers(trainer)
        if isinstance(self.combined, datasets.DatasetDict):
            is_named = trainer.should_dataset_name_column_be_added(self.combined, trainer.args, trainer.loss)
            self.streams = [self._named(stream, is_named) for stream in self.streams]
        if _makes_batches(trainer):
            self.streams = [replace(stream, batches=_batches(stream, trainer)) for stream in self.streams]
        return self.streams

    def _named(self, stream: Stream, is_named: bool) -> Stream:
        if stream.is_memory:
            if is_named:
                hint = "Use one loss and prompts that do not depend on the data set, or leave the buffer out."
                expected = "no replay buffer where losses or prompts are chosen by data set"
                raise InvalidValueError(option="train_dataset", stream=stream.name, expected=expected, hint=hint)
            return stream
        preprocess = stream.preprocess
        if is_named and preprocess is not None:
            preprocess = partial(_keeping_name, preprocess)
        return replace(stream, dataset=self.combined[stream.name], preprocess=preprocess)


def _keeping_name(preprocess: Callable[[Any], Any], sample: Any) -> Any:
    """Preprocesses a sample without the name of its data set, which is added again."""
    rest = {name: value for name, value in sample.items() if name != _NAME}
    return {**preprocess(rest), _NAME: sample[_NAME]}


def _check_kind(stream: Stream, trainer: str) -> None:
    if not isinstance(stream.dataset, datasets.Dataset | datasets.IterableDataset):
        hint = "Convert it, with Dataset.from_list or from_generator."
        expected, found = f"a datasets.Dataset or IterableDataset for {trainer}", type(stream.dataset).__name__
        raise InvalidTypeError(option="dataset", stream=stream.name, expected=expected, found=found, hint=hint)
    if stream.dataset.column_names is None:
        hint = "Give the iterable data set its columns: dataset.cast(datasets.Features(...))."
        raise InvalidValueError(option="dataset", stream=stream.name, expected="with known columns", hint=hint)


def _makes_batches(trainer: Any) -> bool:
    """Whether batches are others than shuffled rows."""
    is_overridden = type(trainer).get_batch_sampler is not BaseTrainer.get_batch_sampler
    return is_overridden or trainer.args.batch_sampler != BatchSamplers.BATCH_SAMPLER


def _batches(stream: Stream, trainer: Any) -> Any:
    if stream.batches is not None or stream.is_iterable or stream.is_memory:
        return stream.batches
    return SampledBatches(trainer, stream.dataset)


def _check_samplers(trainer: Any) -> None:
    """Refuses what chooses the data set of a batch, which the policy does."""
    kind = type(trainer)
    is_overridden = kind.get_multi_dataset_batch_sampler is not BaseTrainer.get_multi_dataset_batch_sampler
    chosen = trainer.args.multi_dataset_batch_sampler
    if is_overridden or chosen != MultiDatasetBatchSamplers.PROPORTIONAL:
        hint = "Set mixing: 'Uniform' takes turns as round robin does, a function or a policy does anything else."
        found = f"{kind.__name__}.get_multi_dataset_batch_sampler" if is_overridden else chosen
        option = "multi_dataset_batch_sampler"
        raise InvalidValueError(option=option, expected="the default, proportional", found=found, hint=hint)
