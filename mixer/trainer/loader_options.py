"""How a trainer loads its streams: the loader, its workers, and the columns of the model."""

from functools import partial
from pathlib import Path
from typing import Any

import datasets
from torch import Tensor
from transformers import default_data_collator
from transformers.trainer_utils import seed_worker

from mixer.loading.batching import MicroBatchOptions
from mixer.loading.iterable.feed import Feed
from mixer.loading.iterable.source import RowSource
from mixer.loading.lengths import Lengths
from mixer.loading.loader import MixingLoader
from mixer.loading.preprocessing import preprocessed
from mixer.loading.step import StepBatch
from mixer.loading.transport import Columns
from mixer.loading.workers import WorkerOptions
from mixer.mixture.controller import Mixing
from mixer.mixture.stream import Stream, read_from
from mixer.trainer.checkpointing.files import CAP_ENTRY, read_state
from mixer.trainer.step import StepMixin

# Workers time out a little earlier than ranks, so that a rank with stuck workers can report it.
_SHARE_OF_TIMEOUT = 0.9


class LoadingMixin(StepMixin):
    """A Trainer whose training data are streams."""

    _combined: Any
    _is_beginning: bool = False  # whether the loop has yet to ask for the run's own loader
    _rows_from: Path | None = None  # checkpoint with the state of iterable streams and of the cap

    def get_train_dataloader(self) -> MixingLoader:  # type: ignore[override]  # the loop only iterates it and takes its length
        """Creates the loader of the streams; see `Trainer.get_train_dataloader`.

        Called outside of the run, it returns a loader to look at: it yields an epoch with the present weights and batch
        size, and does not move the run's streams.
        """
        self._check_train_dataset()
        is_run, self._is_beginning = self._is_beginning and self.is_in_train, False
        if is_run:  # the loop's first act
            self._begin_run()
        mixing = self.mixing if is_run else self.mixing.aside()
        feed = self._new_feed(mixing)
        loader = self._new_loader(mixing, feed)
        loader.is_looked_at = not is_run
        if is_run:
            self._loader, self._feed = loader, feed
        return loader

    def _check_train_dataset(self) -> None:
        if self.train_dataset is not self._combined:
            raise ValueError(
                "train_dataset was replaced after construction, but the streams are fixed then. Build a new trainer."
            )
        if self._combined is None:
            raise ValueError("Trainer: training requires a train_dataset.")

    def _new_loader(self, mixing: Mixing, feed: Feed | None) -> MixingLoader:
        loader = MixingLoader(
            mixing,
            self._datasets(),
            self._common_collator,
            rank=self.args.process_index,
            world_size=self.args.world_size,
            micro_batches=self._micro_batch_options(),
            stack_columns=self._model_columns if self.data_collator is default_data_collator else None,
            seed=self._data_seed,
            workers=self._worker_options(),
            pin_memory=self.args.dataloader_pin_memory and self.args.device.type not in ("cpu", "mps"),
            feed=feed,
            keeps_samples=True,  # until the loss normalisation is known
            specifics=self._specifics,
            skipping=self._skipping,
        )
        loader.keeps_positions = self._keeps_output
        # TRL's trainers set padding_free if one row holds several samples.
        loader.by_stream = self._wants_one_stream_each or bool(getattr(self, "padding_free", False))
        self._compare_unseen_columns(loader)
        if self._recovers and self._rows_from is not None:
            loader.cap = loader.cap.taken_up(read_state(self._rows_from).get(CAP_ENTRY))
        return loader

    def _compare_unseen_columns(self, loader: MixingLoader) -> None:
        """Makes the loader compare the columns of samples that could not be inspected before.

        These are samples of memories and iterable streams, and samples made by code if the collator is one of
        transformers, which all use the columns of the first sample.
        """
        unseen = [
            number
            for number, stream in enumerate(self.streams)
            if stream.is_memory or (_is_made(stream) and goes_by_first(stream.data_collator or self.data_collator))
        ]
        is_unseen = len(self.streams) > 1 and any(stream.is_iterable or stream.is_memory for stream in self.streams)
        is_unseen = is_unseen or (goes_by_first(self.data_collator) and any(map(_is_made, self.streams)))
        taken: Any = self._signature_columns if self._removes_columns else None
        removed = {
            name
            for stream in self.streams
            if taken is not None and not _is_made(stream)
            for name in set(stream.dataset.column_names) - set(taken)
        }
        loader.compare_columns([*unseen, *([-1] if is_unseen else [])], taken, removed)

    def _prepare_input(self, data: Any) -> Any:
        if isinstance(data, StepBatch):
            raise self._refused_step()
        # The Trainer's own loader moves batches to the device in this way.
        config: Any = self.args.accelerator_config
        if self._mixing is not None and isinstance(data, Tensor) and config.non_blocking:
            data = data.to(self.args.device, non_blocking=True)
        return super()._prepare_input(data)

    @property
    def _data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    @property
    def _most_per_micro_batch(self) -> int:
        """Maximum samples of a micro-batch, until memory runs out."""
        return int(self._train_batch_size)

    @property
    def _removes_columns(self) -> bool:
        """Whether columns that the model does not take are removed before collation."""
        return bool(self.args.remove_unused_columns)

    def _remove_unused_columns(self, dataset: Any, description: str | None = None) -> Any:
        return super()._remove_unused_columns(dataset, description) if self._removes_columns else dataset

    def _get_collator_with_removed_columns(self, data_collator: Any, description: str | None = None) -> Any:
        if not self._removes_columns:
            return data_collator
        return super()._get_collator_with_removed_columns(data_collator, description)

    def _micro_batch_options(self) -> MicroBatchOptions:
        args = self.args
        groups = args.train_sampling_strategy == "group_by_length"
        if not groups and self._max_tokens is None:
            return MicroBatchOptions(self._most_per_micro_batch)
        names = getattr(self.processing_class, "model_input_names", None) or ["input_ids"]
        sources = [preprocessed(stream.dataset, stream.preprocess) for stream in self.streams]
        lengths = Lengths(sources, args.length_column_name, names[0])
        return MicroBatchOptions(self._most_per_micro_batch, self._max_tokens, groups, lengths, self._rank_sync.most)

    def _worker_options(self) -> WorkerOptions:
        args = self.args
        workers: int = args.dataloader_num_workers
        return WorkerOptions(
            num_workers=workers,
            prefetch_factor=2 if args.dataloader_prefetch_factor is None else args.dataloader_prefetch_factor,
            persistent_workers=args.dataloader_persistent_workers,
            worker_init_fn=partial(seed_worker, num_workers=workers, rank=args.process_index),
            multiprocessing_context=getattr(args, "dataloader_multiprocessing_context", None),
            limit_seconds=_SHARE_OF_TIMEOUT * args.ddp_timeout,
        )

    def _new_feed(self, mixing: Mixing) -> Feed | None:
        if not any(stream.is_iterable for stream in self.streams):
            return None
        args, options, skipped = self.args, self._worker_options(), self._skipping.stream_ids
        sources = {
            stream_id: RowSource(
                stream.name,
                stream.dataset if stream_id in skipped else preprocessed(stream.dataset, stream.preprocess),
                stream.order_key(self._data_seed),
                args.process_index,
                args.world_size,
                options,
                skips=stream_id in skipped,
                preprocess=stream.preprocess if stream_id in skipped else None,
            )
            for stream_id, stream in enumerate(self.streams)
            if stream.is_iterable
        }
        feed = Feed(sources, mixing, self._rank_sync, args.world_size)
        if self._rows_from is not None:
            feed.load(self._rows_from, args.process_index, self._allow_inexact)
        return feed

    def _model_columns(self, columns: Columns) -> dict[str, Any]:
        """Applies the default collator and the removal of unused columns to whole columns."""
        known: Any = self._signature_columns if self._removes_columns else columns
        inputs = {name: values for name, values in columns.items() if name in known}
        if "label" in inputs:
            label = inputs.pop("label")
            inputs["labels"] = label.float() if label.is_floating_point() else label.long()
        elif "label_ids" in inputs:
            inputs["labels"] = inputs.pop("label_ids")
        return inputs

    def _datasets(self) -> list[Any]:
        """Returns the data set of each stream, without columns that the model does not take."""
        lasting = {stream.name: self._with_model_columns(stream) for stream in self.streams if not stream.is_memory}
        return read_from(self.streams, lasting)

    @property
    def _common_collator(self) -> Any:
        """The collator of the streams that have none of their own."""
        if self._columns_are_removed:
            return self.data_collator
        return self._get_collator_with_removed_columns(self.data_collator, description="training")

    @property
    def _columns_are_removed(self) -> bool:
        """Whether all samples are loaded without unused columns; memories keep what they received."""
        return not any(map(_is_made, self.streams))

    def _with_model_columns(self, stream: Stream) -> Any:
        if _is_made(stream):
            return preprocessed(stream.dataset, stream.preprocess)
        columns = stream.dataset.column_names
        missing = [name for name in stream.label_names or () if name not in columns]
        if missing and stream.data_collator is None:
            raise ValueError(f"Stream {stream.name!r}: label_names contains {missing}, but the columns are {columns}.")
        taken: list[str] = list(self._signature_columns or ())
        if self._removes_columns and not set(taken) & set(columns):
            raise ValueError(
                f"Stream {stream.name!r}: the model takes none of the columns {columns}; it takes {taken}. Rename the "
                f"columns, set the stream's preprocess, or set remove_unused_columns=False for a data_collator that "
                f"creates the inputs."
            )
        return self._remove_unused_columns(stream.dataset, description=f"training stream {stream.name!r}")


def _is_made(stream: Stream) -> bool:
    """Whether code creates the samples, perhaps with different columns."""
    return not isinstance(stream.dataset, datasets.Dataset) or stream.preprocess is not None


def goes_by_first(collator: Any) -> bool:
    """Says whether a collator is one of transformers, which all use the columns of the first sample."""
    return getattr(collator, "__module__", "").startswith("transformers.data")
