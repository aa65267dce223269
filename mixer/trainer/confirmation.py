"""Loading a step, and the agreement of all ranks on it before anything else happens."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from torch import Tensor
from transformers.utils import logging

from mixer.checkpoint.write_errors import explain_write_error
from mixer.distributed.collectives import OtherRankError, RankSync
from mixer.loading.batching import Size
from mixer.loading.collate import batch_mapping
from mixer.loading.loaded_step import MicroBatch, StepBatch, StepCounts
from mixer.losses.stream_losses import StreamLosses
from mixer.mixture.counted_units import check_counted, option_counting
from mixer.mixture.step_plan import StepPlan
from mixer.models.row_losses import has_labels, num_rows, tokens_per_row
from mixer.run.class_checks import check_one_pass
from mixer.run.state import Basis
from mixer.utils.arrays import Int64Array
from mixer.utils.text import printable, shortened

logger = logging.get_logger(__name__)

_HALF = 2**24  # fingerprints are sent in halves of 24 bits, whose squares sum up in 64 bits over 2^15 ranks
_MOST_CHARACTERS = 1_000  # of each list in a rank's description of its plan
_MOST_LOGGED = 20  # skipped samples that each rank logs one by one


class DisagreementError(RuntimeError):
    """The ranks planned different steps; the message holds the plans."""


class StepConfirmation:
    """Loads steps and confirms them: all ranks trained the last one, planned the same next one, and could load it.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        losses: The losses of the streams, which count items.
        check_labels: Refuses labels that a stream's head does not have.
        signals: Returns how many of the signals that end a run this rank has received.
    """

    def __init__(
        self,
        basis: Basis,
        losses: StreamLosses,
        check_labels: Callable[[StepBatch], None],
        signals: Callable[[], tuple[int, ...]],
    ):
        self._trainer, plan, self._run, self._ranks = basis
        self._skipping, self._losses, self._check_labels, self._signals = plan.skipping, losses, check_labels, signals
        self._num_streams = len(plan.streams)
        self.largest = Size(0, 0)  # of this rank's micro-batches in the step
        self.begin_run()

    def begin_run(self) -> None:
        """Begins a run."""
        self._window, self._num_trained = SucceededSizes(), 0  # steps trained in this run
        self._step_logged, self._num_logged = -1, 0  # the last step whose skipped samples were logged

    def record_success(self) -> None:
        """Records that the step was trained, with its largest micro-batch."""
        self._window.record_success(self.largest)
        self._num_trained += 1

    def load_and_confirm(self, load: Callable[[], StepBatch | None]) -> StepBatch | None:
        """Loads a step, or catches an error, and reports it to the other ranks before anything else happens."""
        batch, counts, run = None, None, self._run
        error, folder = run.method_error or run.policy_error or run.ledger.error, str(self._trainer.args.output_dir)
        error = explain_write_error(error, Path(folder))
        try:
            if self._can_load(error):
                batch = load()
                counts = None if batch is None else self._counted(batch)
        except OtherRankError:
            batch = None
        except Exception as caught:  # sent to all ranks before it is raised
            error = caught
        plan = None if batch is None else batch.plan
        run.step.counts = counts = confirm(self._ranks, self._num_streams, plan, counts, error)
        if batch is not None:
            run.step.plan, run.step.left_out = batch.plan, self._left_out(batch, counts.skipped)
            check_counted(run.mixing, batch.plan, counts.tokens, counts.skipped, counts.labels)
            self._log_skipped_samples(batch, counts.skipped)
        return batch

    def recount(self, batch: StepBatch) -> StepBatch:
        """Counts a step's items again."""
        return self.load_and_confirm(lambda: batch) or batch

    def reload(self, batch: StepBatch) -> StepBatch:
        """Loads the samples of a step again."""
        return self.load_and_confirm(lambda: self._run.present_loader.load(batch.plan, self._run.splitting)) or batch

    def resplit(self, batch: StepBatch) -> StepBatch:
        """Splits a step into smaller micro-batches."""
        return self.load_and_confirm(lambda: self._run.present_loader.resplit(batch, self._run.splitting)) or batch

    def _can_load(self, error: Exception | None) -> bool:
        """Whether to load; ranks that communicate while loading do so only if all of them can."""
        if self._run.loader is None or not self._run.loader.uses_collectives:
            return error is None
        return bool(self._ranks.all_reduce_min(np.array([error is None], dtype=np.int64))[0])

    def _counted(self, batch: StepBatch) -> StepCounts:
        """Counts the items, tokens and labels of this rank's micro-batches."""
        self._check_labels(batch)
        num_streams = self._num_streams
        items, tokens, labels = np.zeros((3, num_streams), dtype=np.int64)
        self._run.step.micro_items = micro_items = []
        num_first = num_rows = squared_items = 0
        mixed_up = np.zeros(2, dtype=np.int64)
        for micro in batch.micro_batches:
            with self._losses.naming_streams(micro):
                per_row = self._losses.items_per_row(micro)
                own_labels = self._labels_of(micro, per_row).cpu().numpy()
            numbers = per_row.cpu().numpy()
            micro_items.append(0 if micro.is_padding else int(numbers.sum()))
            if not micro.is_padding:
                own_tokens = tokens_per_row(micro.inputs).cpu().numpy()
                items += micro.by_stream(numbers, num_streams)
                tokens += micro.by_stream(own_tokens, num_streams)
                labels += micro.by_stream(own_labels, num_streams)
                mixed_up += _mixed_up(micro, numbers, own_tokens)
                num_first += self._losses.num_first_labels(micro, per_row)
                num_rows += len(numbers)
                squared_items += int(numbers @ numbers)
        skipped = np.bincount([stream_id for stream_id, *_ in batch.broken], minlength=num_streams)
        num_larger = int(self._is_larger(batch))
        of_rows = num_rows, squared_items, (int(mixed_up[0]), int(mixed_up[1]))
        return StepCounts(items, tokens, num_larger, num_first, skipped, self._signals(), *of_rows, labels)

    def _labels_of(self, micro: MicroBatch, items: Tensor) -> Tensor:
        """Counts the labels of each row that the loss learns, int64 `[num_rows]`; 0 for rows that have none."""
        inputs = batch_mapping(micro.inputs)
        if has_labels(inputs):  # which the loss counts as its items, unless it is a mean over rows
            counts_rows = self._losses.normalization_of(micro.first_stream).counts_rows
            return self._losses.labels_per_row(inputs) if counts_rows else items
        if (user := option_counting(self._run.mixing, "labels")) is not None and not micro.is_padding:
            raise ValueError(
                f"{user} counts the labels that the loss learns, but a micro-batch has no 'labels', only "
                f"{sorted(map(str, inputs))}. Give amounts in tokens or samples, or have the collator make labels."
            )
        return torch.zeros(num_rows(inputs), dtype=torch.int64)

    def _is_larger(self, batch: StepBatch) -> bool:
        """Whether a step has a micro-batch larger than any before."""
        num_micro_batches, trainer = len(batch.micro_batches), self._trainer
        check_one_pass(trainer.args, trainer.accelerator, batch.plan.step, num_micro_batches, not self._num_trained)
        self.largest = Size.largest(batch.micro_batches)
        return self._window.is_beyond(self.largest)

    def _left_out(self, batch: StepBatch, skipped: Int64Array | None) -> list[tuple[int, int]]:
        """Gathers stream and position of the samples that all ranks skip, which each knows of its own alone."""
        if skipped is None or not skipped.any():
            return []
        own = [(stream_id, position) for stream_id, _, position in batch.broken]
        return [(stream_id, position) for of_rank in self._ranks.gather(own) for stream_id, position in of_rank]

    def _log_skipped_samples(self, batch: StepBatch, skipped: Int64Array | None) -> None:
        """Logs the samples that a step skips, and ends the run on all ranks if there are too many."""
        messages = [sample.message for _, sample, _ in batch.broken]
        if batch.plan.step != self._step_logged:  # otherwise it was reloaded
            self._step_logged = batch.plan.step
            for message in messages[: max(_MOST_LOGGED - self._num_logged, 0)]:
                logger.warning("Step %d continues without a sample. %s", batch.plan.step, printable(message))
            self._num_logged += len(messages)
            if self._num_logged >= _MOST_LOGGED > self._num_logged - len(messages):
                logger.warning("Further skipped samples are counted in the ledger (column skipped), but not logged.")
        if skipped is not None:
            mixing = self._run.mixing
            self._skipping.check(mixing.names, mixing.skipped + skipped, mixing.seen, messages)


def _mixed_up(micro: MicroBatch, *numbers: Int64Array) -> tuple[int, int]:
    """Counts rows and samples of a micro-batch of several streams, if rows and samples are not one to one."""
    ids = micro.stream_ids
    others = [len(own) for own in numbers if len(own) != len(ids) and own.any()]
    return (others[0], len(ids)) if others and (ids != ids[0]).any() else (0, 0)


def confirm(
    ranks: RankSync, num_streams: int, plan: StepPlan | None, contents: StepCounts | None, error: Exception | None
) -> StepCounts:
    """Sums the ranks' counts of a step after checking that all planned the same one; all ranks must call it.

    A single small collective carries the counts, a fingerprint of the plan, and whether a rank failed.

    Args:
        ranks: Collectives.
        num_streams: Number of streams.
        plan: This rank's plan, or `None`.
        contents: This rank's counts, or `None` after an error.
        error: This rank's error, or `None`.

    Returns:
        Counts of the whole step.

    Raises:
        DisagreementError: On every rank, if the plans differ.
        RemoteError: If another rank failed; the failed rank raises its own error.
    """
    zeros = np.zeros(num_streams, dtype=np.int64)
    own = contents or StepCounts(zeros, zeros)
    if ranks.world_size == 1:
        if error is not None:
            raise error
        return own
    halves = divmod(0 if plan is None else plan.fingerprint(), _HALF)
    head = np.array([error is not None, *halves, *(half * half for half in halves)], dtype=np.int64)
    of_rows = (own.num_rows, own.squared_items, *own.mixed_up)
    counts = np.array([own.num_larger, own.num_first, *of_rows, *own.signals])
    skipped = zeros if own.skipped is None else own.skipped
    by_stream = (own.items, own.tokens, skipped, own.amounts("labels"))
    message = ranks.all_reduce_sum(np.concatenate([head, *by_stream, counts]))
    num_failures, *sums = message[:5].tolist()
    if num_failures:
        ranks.raise_on_all(error)
    # Cauchy-Schwarz: W times the sum of squares equals the square of the sum only if all are equal.
    if any(ranks.world_size * sums[half + 2] != sums[half] ** 2 for half in (0, 1)):
        _raise_disagreement(ranks, plan)
    items, tokens, skipped, labels = message[5 : -len(counts)].reshape(4, num_streams)
    num_larger, num_first, num_rows, squared_items, *more = message[-len(counts) :].tolist()
    mixed_up, signals = (more[0], more[1]), tuple(more[2:])
    return StepCounts(items, tokens, num_larger, num_first, skipped, signals, num_rows, squared_items, mixed_up, labels)


def _raise_disagreement(ranks: RankSync, plan: StepPlan | None) -> None:
    own = "nothing left"
    if plan is not None:  # shortened: each rank receives every rank's description
        counts, weights = (shortened(str(part.tolist()), _MOST_CHARACTERS) for part in (plan.counts, plan.weights))
        own = f"step {plan.step}, counts {counts}, weights {weights}"
    described = "; ".join(f"rank {rank}: {text}" for rank, text in enumerate(ranks.gather(own)))
    raise DisagreementError(
        f"The ranks planned different steps ({described}). All ranks must decide alike: call set_weights on "
        "all ranks, and let no policy or function depend on the rank, the time or global random numbers."
    )


class SucceededSizes:
    """Tracks which micro-batch sizes succeeded; the window is open while larger ones come.

    The first step of a run proves nothing: the optimizer allocates its state after it.
    """

    def __init__(self) -> None:
        self._fits = Size(0, 0)
        self._has_begun = False

    def is_beyond(self, largest: Size) -> bool:
        """Whether a step's largest micro-batch exceeds all successful ones, in samples or in elements."""
        return largest.samples > self._fits.samples or largest.elements > self._fits.elements

    def record_success(self, largest: Size) -> None:
        """Records the largest micro-batch of a successful step."""
        if self._has_begun:
            self._fits = Size(*map(max, self._fits, largest))
        self._has_begun = True
