"""How a trainer loads its streams: the loader and its workers."""

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from transformers import TrainingArguments, default_data_collator
from transformers.trainer_utils import seed_worker

from mixer.distributed.collectives import RankSync
from mixer.loading.batching import MicroBatchOptions, Splitting
from mixer.loading.collate import Collation
from mixer.loading.iterable.feed import Feed
from mixer.loading.iterable.source import RowSource
from mixer.loading.lengths import Lengths
from mixer.loading.loader import MixingLoader
from mixer.loading.preprocessing import preprocessed
from mixer.loading.workers import WorkerOptions
from mixer.mixture.controller import Mixing
from mixer.run import hf_compat
from mixer.run.plan import RunPlan
from mixer.run.samples import StreamSamples, goes_by_first, is_made

# Workers time out a little earlier than ranks, so that a rank with stuck workers can report it.
_SHARE_OF_TIMEOUT = 0.9


def data_seed(args: TrainingArguments) -> int:
    """Returns the seed of the data."""
    return args.seed if args.data_seed is None else args.data_seed


class StreamLoading:
    """Makes the loaders of a trainer's streams, as the training arguments say.

    Args:
        plan: The plan of the run.
        samples: The samples of its streams.
        ranks: Collective operations.
    """

    def __init__(self, plan: RunPlan, samples: StreamSamples, ranks: RankSync):
        self._trainer, self._streams, self._rules = samples.trainer, samples.streams, samples.rules
        self._samples, self._ranks = samples, ranks
        self._max_tokens, self._skipping = plan.config.max_tokens_per_micro_batch, plan.skipping
        self._lengths: Lengths | None = None

    @property
    def seed(self) -> int:
        """The seed of the data."""
        return data_seed(self._trainer.args)

    def new_loader(
        self, mixing: Mixing, feed: Feed | None, splitting: Callable[[], Splitting], is_preview: bool
    ) -> MixingLoader:
        """Makes a loader.

        Args:
            mixing: The controller of the mixture.
            feed: The rows of iterable streams.
            splitting: Returns how the next step is split into micro-batches.
            is_preview: Whether its steps are inspected only.
        """
        args = self._trainer.args
        return MixingLoader(
            mixing,
            self._samples.datasets(),
            self._collation(mixing.names),
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

    def _collation(self, names: Sequence[str]) -> Collation:
        """Returns how micro-batches are collated; columns that could not be inspected before are compared.

        These are of samples of memories and iterable streams, and of samples made by code if the collator is one of
        transformers, which all use the columns of the first sample.
        """
        args, samples = self._trainer.args, self._samples
        unseen = [
            number
            for number, stream in enumerate(self._streams)
            if stream.is_memory or (is_made(stream) and goes_by_first(stream.data_collator or samples.data_collator))
        ]
        is_unseen = len(self._streams) > 1 and any(stream.is_iterable or stream.is_memory for stream in self._streams)
        is_unseen = is_unseen or (goes_by_first(samples.data_collator) and any(map(is_made, self._streams)))
        compared = [*unseen, *([-1] if is_unseen else [])] if self._rules.compares_columns else []
        taken = samples.taken_columns
        removed = {
            name
            for stream in self._streams
            if taken is not None and not is_made(stream)
            for name in set(stream.dataset.column_names) - set(taken)
        }
        return Collation(
            samples.common_collator,
            names,
            stack_columns=samples.model_columns if samples.data_collator is default_data_collator else None,
            seed=self.seed,
            rank=args.process_index,
            pin_memory=self._rules.worker_option("pin_memory") and args.device.type not in ("cpu", "mps"),
            specifics=samples.specifics,
            compared=frozenset(compared),
            taken=None if taken is None else frozenset(taken),
            removed=frozenset(removed),
        )

    def _micro_batch_options(self) -> MicroBatchOptions:
        args = self._trainer.args
        groups = args.train_sampling_strategy == "group_by_length"
        lengths = self.lengths()
        if lengths is None:
            return MicroBatchOptions(self._rules.most_samples)
        rules, max_over_ranks = self._rules, self._ranks.max_over_ranks
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
        args, option = self._trainer.args, self._rules.worker_option
        workers: int = option("num_workers")
        seeds = partial(seed_worker, num_workers=workers, rank=args.process_index)
        return WorkerOptions(
            num_workers=workers,
            prefetch_factor=2 if option("prefetch_factor") is None else option("prefetch_factor"),
            persistent_workers=option("persistent_workers"),
            worker_init_fn=option("worker_init_fn") or seeds,
            multiprocessing_context=option("multiprocessing_context"),
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
        feed = Feed(sources, mixing, self._ranks, args.world_size)
        if rows_from is not None:
            feed.load(rows_from, args.process_index, allow_inexact)
        return feed
