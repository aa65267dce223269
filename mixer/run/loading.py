"""How a trainer loads its streams: the loader, its workers, and the columns of the model."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import datasets
from transformers import Trainer, TrainingArguments, default_data_collator
from transformers.trainer_utils import seed_worker

from mixer.distributed.collectives import RankSync
from mixer.loading.batching import MicroBatchOptions, Splitting
from mixer.loading.collate import Collation, Columns, StreamSpecifics
from mixer.loading.iterable.feed import Feed
from mixer.loading.iterable.source import RowSource
from mixer.loading.lengths import Lengths
from mixer.loading.loader import MixingLoader
from mixer.loading.preprocessing import preprocessed
from mixer.loading.workers import WorkerOptions
from mixer.mixture.controller import Mixing
from mixer.mixture.stream import Stream
from mixer.mixture.streams import read_from
from mixer.run import hf_compat
from mixer.run.plan import Options
from mixer.utils.user_code import module_of

# Workers time out a little earlier than ranks, so that a rank with stuck workers can report it.
_SHARE_OF_TIMEOUT = 0.9


class LoadingRules:
    """How a trainer loads, where a drop-in class may decide otherwise.

    Args:
        trainer: The trainer.
        max_samples: Maximum samples of a micro-batch; `None` for that of the training arguments.
    """

    def __init__(self, trainer: Trainer, max_samples: int | None = None):
        self._trainer, self._max_samples = trainer, max_samples

    @property
    def most_samples(self) -> int:
        """Maximum samples of a micro-batch, until memory runs out."""
        return hf_compat.train_batch_size(self._trainer) if self._max_samples is None else self._max_samples

    @property
    def removes_columns(self) -> bool:
        """Whether columns that the model does not take are removed before collation."""
        return bool(self._trainer.args.remove_unused_columns)

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


def data_seed(args: TrainingArguments) -> int:
    """Returns the seed of the data."""
    return args.seed if args.data_seed is None else args.data_seed


class StreamLoading:
    """Makes the loaders of a trainer's streams, as the training arguments say.

    Args:
        trainer: The trainer.
        streams: The streams.
        options: The options of the mixture.
        rank_sync: Collective operations.
        rules: Where a drop-in class decides otherwise.
    """

    def __init__(
        self, trainer: Trainer, streams: Sequence[Stream], options: Options, rank_sync: RankSync, rules: LoadingRules
    ):
        self._trainer, self._streams, self._rank_sync = trainer, streams, rank_sync
        self._max_tokens, self._skipping = options.config.max_tokens_per_micro_batch, options.skipping
        self._rules = rules
        self._lengths: Lengths | None = None

    @property
    def seed(self) -> int:
        """The seed of the data."""
        return data_seed(self._trainer.args)

    def new_loader(
        self,
        mixing: Mixing,
        feed: Feed | None,
        specifics: Mapping[int, StreamSpecifics],
        splitting: Callable[[], Splitting],
        is_preview: bool,
    ) -> MixingLoader:
        """Makes a loader.

        Args:
            mixing: The controller of the mixture.
            feed: The rows of iterable streams.
            specifics: Collators and heads of single streams.
            splitting: Returns how the next step is split into micro-batches.
            is_preview: Whether its steps are inspected only.
        """
        args = self._trainer.args
        return MixingLoader(
            mixing,
            self.datasets(),
            self._collation(mixing.names, specifics),
            rank=args.process_index,
            world_size=args.world_size,
            micro_batches=self._micro_batch_options(),
            stacks_lists=True,
            workers=self._worker_options(),
            feed=feed,
            skipping=self._skipping,
            splitting=splitting,
            is_preview=is_preview,
        )

    def _collation(self, names: Sequence[str], specifics: Mapping[int, StreamSpecifics]) -> Collation:
        """Returns how micro-batches are collated; columns that could not be inspected before are compared.

        These are of samples of memories and iterable streams, and of samples made by code if the collator is one of
        transformers, which all use the columns of the first sample.
        """
        trainer, args = self._trainer, self._trainer.args
        unseen = [
            number
            for number, stream in enumerate(self._streams)
            if stream.is_memory or (_is_made(stream) and goes_by_first(stream.data_collator or trainer.data_collator))
        ]
        is_unseen = len(self._streams) > 1 and any(stream.is_iterable or stream.is_memory for stream in self._streams)
        is_unseen = is_unseen or (goes_by_first(trainer.data_collator) and any(map(_is_made, self._streams)))
        taken: Any = hf_compat.signature_columns(trainer) if self._rules.removes_columns else None
        removed = {
            name
            for stream in self._streams
            if taken is not None and not _is_made(stream)
            for name in set(stream.dataset.column_names) - set(taken)
        }
        return Collation(
            self.common_collator,
            names,
            stack_columns=self.model_columns if trainer.data_collator is default_data_collator else None,
            seed=self.seed,
            rank=args.process_index,
            pin_memory=args.dataloader_pin_memory and args.device.type not in ("cpu", "mps"),
            specifics=specifics,
            compared=frozenset([*unseen, *([-1] if is_unseen else [])]),
            taken=None if taken is None else frozenset(taken),
            removed=frozenset(removed),
        )

    def _micro_batch_options(self) -> MicroBatchOptions:
        args = self._trainer.args
        groups = args.train_sampling_strategy == "group_by_length"
        lengths = self.lengths()
        if lengths is None:
            return MicroBatchOptions(self._rules.most_samples)
        rules, max_over_ranks = self._rules, self._rank_sync.max_over_ranks
        return MicroBatchOptions(rules.most_samples, self._max_tokens, groups, lengths, max_over_ranks)

    def lengths(self) -> Lengths | None:
        """Returns the lengths of samples; `None` if micro-batches are made without regard to them."""
        args = self._trainer.args
        if args.train_sampling_strategy != "group_by_length" and self._max_tokens is None:
            return None
        if self._lengths is None:
            names = getattr(self._trainer.processing_class, "model_input_names", None) or ["input_ids"]
            sources = [preprocessed(stream.dataset, stream.preprocess) for stream in self._streams]
            self._lengths = Lengths(sources, args.length_column_name, names[0])
        return self._lengths

    def _worker_options(self) -> WorkerOptions:
        args = self._trainer.args
        workers: int = args.dataloader_num_workers
        return WorkerOptions(
            num_workers=workers,
            prefetch_factor=2 if args.dataloader_prefetch_factor is None else args.dataloader_prefetch_factor,
            persistent_workers=args.dataloader_persistent_workers,
            worker_init_fn=partial(seed_worker, num_workers=workers, rank=args.process_index),
            multiprocessing_context=getattr(args, "dataloader_multiprocessing_context", None),
            limit_seconds=_SHARE_OF_TIMEOUT * args.ddp_timeout,
            job_size=hf_compat.train_batch_size(self._trainer),
        )

    def new_feed(self, mixing: Mixing, rows_from: Path | None = None, allow_inexact: bool = False) -> Feed | None:
        """Makes the feed of the iterable streams, if there are any; from a checkpoint if one is given."""
        if not any(stream.is_iterable for stream in self._streams):
            return None
        args, options, skipped = self._trainer.args, self._worker_options(), self._skipping.stream_ids
        sources = {
            stream_id: RowSource(
                stream.name,
                stream.dataset if stream_id in skipped else preprocessed(stream.dataset, stream.preprocess),
                stream.order_key(self.seed),
                args.process_index,
                args.world_size,
                options,
                skips=stream_id in skipped,
                preprocess=stream.preprocess if stream_id in skipped else None,
            )
            for stream_id, stream in enumerate(self._streams)
            if stream.is_iterable
        }
        feed = Feed(sources, mixing, self._rank_sync, args.world_size)
        if rows_from is not None:
            feed.load(rows_from, args.process_index, allow_inexact)
        return feed

    def model_columns(self, columns: Columns) -> dict[str, Any]:
        """Applies the default collator and the removal of unused columns to whole columns."""
        known: Any = hf_compat.signature_columns(self._trainer) if self._rules.removes_columns else columns
        inputs = {name: values for name, values in columns.items() if name in known}
        if "label" in inputs:
            label = inputs.pop("label")
            inputs = {"labels": label.float() if label.is_floating_point() else label.long(), **inputs}
        elif "label_ids" in inputs:
            inputs["labels"] = inputs.pop("label_ids")
        return inputs

    def datasets(self) -> list[Any]:
        """Returns the data set of each stream, without columns that the model does not take."""
        lasting = {stream.name: self._with_model_columns(stream) for stream in self._streams if not stream.is_memory}
        return read_from(self._streams, lasting)

    @property
    def common_collator(self) -> Any:
        """The collator of the streams that have none of their own."""
        if self.columns_are_removed:
            return self._trainer.data_collator
        return hf_compat.collator_removing_columns(self._trainer, self._trainer.data_collator, "training")

    @property
    def columns_are_removed(self) -> bool:
        """Whether all samples are loaded without unused columns; memories keep what they received."""
        return not any(map(_is_made, self._streams))

    def _with_model_columns(self, stream: Stream) -> Any:
        if _is_made(stream):
            return preprocessed(stream.dataset, stream.preprocess)
        columns = stream.dataset.column_names
        missing = [name for name in stream.label_names or () if name not in columns]
        if missing and stream.data_collator is None:
            raise ValueError(f"Stream {stream.name!r}: label_names contains {missing}, but the columns are {columns}.")
        taken: list[str] = list(hf_compat.signature_columns(self._trainer) or ())
        if self._rules.removes_columns and not set(taken) & set(columns):
            raise ValueError(
                f"Stream {stream.name!r}: the model takes none of the columns {columns}; it takes {taken}. Rename them,"
                " set the stream's preprocess, or remove_unused_columns=False for a collator that creates inputs."
            )
        return hf_compat.without_unused_columns(self._trainer, stream.dataset, f"training stream {stream.name!r}")


def _is_made(stream: Stream) -> bool:
    """Whether code creates the samples, perhaps with different columns."""
    return not isinstance(stream.dataset, datasets.Dataset) or stream.preprocess is not None


def goes_by_first(collator: Any) -> bool:
    """Says whether a collator is one of transformers, which all use the columns of the first sample."""
    return module_of(collator).startswith("transformers.data")
