"""How a trainer loads its streams: the loader, its workers, and which columns a model takes."""

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

# Workers are waited for a little less long than ranks are, so that the rank whose workers hang can say so.
_SHARE_OF_TIMEOUT = 0.9


class LoadingMixin(StepMixin):
    """A Trainer whose training data are streams."""

    _combined: Any
    _max_tokens: int | None
    _allow_inexact: bool
    _is_beginning: bool = False  # whether the loader that is made next is the run's own
    _rows_from: Path | None = None  # the checkpoint from which rows of iterable streams, and the cap, go on

    def get_train_dataloader(self) -> MixingLoader:  # type: ignore[override]  # the loop iterates it and asks its length
        """Makes the loader of the streams; see `Trainer.get_train_dataloader`.

        One that the run does not train on is to look at: it gives an epoch as it would be with the present weights and
        batch size, and moves no stream of the run.
        """
        if self.train_dataset is not self._combined:
            raise ValueError(
                "train_dataset was replaced after construction, but the streams are fixed there. Build a new trainer."
            )
        if self._combined is None:
            raise ValueError("Trainer: training requires a train_dataset.")
        is_run, self._is_beginning = self._is_beginning, False
        mixing = self.mixing if is_run else self.mixing.aside()
        feed = self._new_feed(mixing)
        loader = self._new_loader(mixing, feed)
        loader.is_looked_at = not is_run
        if is_run:
            self._loader, self._feed = loader, feed
        return loader

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
            keeps_samples=True,  # until it is known how losses are normalised
            specifics=self._specifics,
            skipping=self._skipping,
        )
        loader.keeps_positions = self._keeps_output
        # TRL's trainers say so where samples are laid end to end in one row.
        loader.by_stream = self._wants_one_stream_each or bool(getattr(self, "padding_free", False))
        self._compare_unseen_columns(loader)
        if self._recovers and self._rows_from is not None:
            loader.cap = loader.cap.taken_up(read_state(self._rows_from).get(CAP_ENTRY))
        return loader

    def _compare_unseen_columns(self, loader: MixingLoader) -> None:
        """Has samples compared as they come where nobody could look at their columns before.

        Those are what memories hold and rows of iterable streams; and samples that anything may have made, where the
        collator is one of transformers, all of which go by the columns of the first.
        """
        unseen = [
            number
            for number, stream in enumerate(self.streams)
            if stream.is_memory or (_is_made(stream) and goes_by_first(stream.data_collator or self.data_collator))
        ]
        is_unseen = len(self.streams) > 1 and any(stream.is_iterable or stream.is_memory for stream in self.streams)
        is_unseen = is_unseen or (goes_by_first(self.data_collator) and any(map(_is_made, self.streams)))
        self._set_signature_columns_if_needed()
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
        # The Trainer's own loader does this: it puts batches on the device.
        config: Any = self.args.accelerator_config
        if self._mixing is not None and isinstance(data, Tensor) and config.non_blocking:
            data = data.to(self.args.device, non_blocking=True)
        return super()._prepare_input(data)

    @property
    def _data_seed(self) -> int:
        return self.args.seed if self.args.data_seed is None else self.args.data_seed

    @property
    def _most_per_micro_batch(self) -> int:
        """Most samples of a micro-batch, until memory runs out."""
        return int(self._train_batch_size)

    @property
    def _removes_columns(self) -> bool:
        """Whether samples lose the columns that the model does not take before they are collated."""
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
        """Does with columns what the default collator, and the removal of unused columns, do with samples."""
        self._set_signature_columns_if_needed()
        known: Any = self._signature_columns if self._removes_columns else columns
        inputs = {name: values for name, values in columns.items() if name in known}
        if "label" in inputs:
            label = inputs.pop("label")
            inputs["labels"] = label.float() if label.is_floating_point() else label.long()
        elif "label_ids" in inputs:
            inputs["labels"] = inputs.pop("label_ids")
        return inputs

    def _datasets(self) -> list[Any]:
        """Gives what each stream is read from, without columns that the model does not take."""
        lasting = {stream.name: self._with_model_columns(stream) for stream in self.streams if not stream.is_memory}
        return read_from(self.streams, lasting)

    @property
    def _common_collator(self) -> Any:
        """Makes micro-batches of the samples of streams that have no collator of their own."""
        if self._columns_are_removed:
            return self.data_collator
        return self._get_collator_with_removed_columns(self.data_collator, description="training")

    @property
    def _columns_are_removed(self) -> bool:
        """Whether no sample that is loaded has columns that the model does not take; memories hold what they got."""
        return all(_is_arrow(stream.dataset) and stream.preprocess is None for stream in self.streams)

    def _check_label_names(self, stream: Stream) -> None:
        missing = [name for name in stream.label_names or () if name not in stream.dataset.column_names]
        if missing and stream.data_collator is None:
            raise ValueError(
                f"Stream {stream.name!r}: label_names has {missing}, but its columns are {stream.dataset.column_names}."
            )

    def _check_some_column(self, stream: Stream) -> None:
        self._set_signature_columns_if_needed()
        taken: list[str] = list(self._signature_columns or ())
        columns = stream.dataset.column_names
        if self._removes_columns and not set(taken) & set(columns):
            raise ValueError(
                f"Stream {stream.name!r}: of its columns {columns} the model takes none; it takes {taken}. Map the "
                "data set to those, give the stream a preprocess, or set remove_unused_columns=False for a "
                "data_collator that makes them."
            )

    def _with_model_columns(self, stream: Stream) -> Any:
        if not _is_arrow(stream.dataset) or stream.preprocess is not None:
            return preprocessed(stream.dataset, stream.preprocess)
        self._check_label_names(stream)
        self._check_some_column(stream)
        return self._remove_unused_columns(stream.dataset, description=f"training stream {stream.name!r}")


def _is_made(stream: Stream) -> bool:
    """Whether code makes the samples, one with other columns than another, maybe."""
    return not _is_arrow(stream.dataset) or stream.preprocess is not None


def goes_by_first(collator: Any) -> bool:
    """Whether a collator is one of transformers, all of which go by the columns of the first sample.

    Args:
        collator: The collator.

    Returns:
        Whether it is.
    """
    return getattr(collator, "__module__", "").startswith("transformers.data")


def _is_arrow(dataset: Any) -> bool:
    return isinstance(dataset, datasets.Dataset)
