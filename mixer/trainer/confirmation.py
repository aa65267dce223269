"""What ranks tell each other of a step before its first forward, in one small collective."""

import numpy as np
import torch
from torch import Tensor

from mixer.distributed.collectives import RankSync
from mixer.loading.collate import batch_mapping
from mixer.loading.loaded_step import MicroBatch, StepBatch, StepCounts
from mixer.losses.stream_losses import StreamLosses
from mixer.mixture.counted_units import option_counting
from mixer.mixture.step_plan import StepPlan
from mixer.models.row_losses import has_labels, num_rows, tokens_per_row
from mixer.run.state import Run
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import wrong_value
from mixer.utils.text import shortened

_HALF = 2**24  # fingerprints are sent in halves of 24 bits, whose squares sum up in 64 bits over 2^15 ranks
_MOST_CHARACTERS = 1_000  # of each list in a rank's description of its plan


class DisagreementError(RuntimeError):
    """The ranks planned different steps; the message holds the plans."""


def counted(batch: StepBatch, losses: StreamLosses, run: Run, num_larger: int) -> StepCounts:
    """Counts the items, tokens and labels of this rank's micro-batches.

    Args:
        batch: This rank's part of a step.
        losses: The losses of the streams.
        run: The run, which keeps the items of each micro-batch.
        num_larger: Whether it has a micro-batch larger than all before: 0 or 1.
    """
    num_streams = len(run.mixing.names)
    items, tokens, labels = np.zeros((3, num_streams), dtype=np.int64)
    run.step.micro_items = micro_items = []
    num_first = num_rows = squared_items = 0
    mixed_up = np.zeros(2, dtype=np.int64)
    for micro in batch.micro_batches:
        try:
            per_row = losses.items_per_row(micro)
            own_labels = _labels_of(micro, per_row, losses, run)
        except Exception as error:
            losses.name_streams(error, micro)
            raise
        numbers = per_row.cpu().numpy()
        micro_items.append(0 if micro.is_padding else int(numbers.sum()))
        if not micro.is_padding:
            own_tokens = tokens_per_row(micro.inputs).cpu().numpy()
            own_items = micro.by_stream(numbers, num_streams)
            items += own_items
            tokens += micro.by_stream(own_tokens, num_streams)
            labels += own_items if own_labels is per_row else micro.by_stream(own_labels.cpu().numpy(), num_streams)
            if not len(numbers) == len(own_tokens) == len(micro.stream_ids):
                mixed_up += _mixed_up(micro, numbers, own_tokens)
            num_first += losses.num_first_labels(micro, per_row)
            num_rows += len(numbers)
            squared_items += int(numbers @ numbers)
    skipped = np.zeros(num_streams, dtype=np.int64)
    for stream_id, *_ in batch.broken:
        skipped[stream_id] += 1
    of_rows = num_rows, squared_items, (int(mixed_up[0]), int(mixed_up[1]))
    return StepCounts(items, tokens, num_larger, num_first, skipped, run.signals.flags, *of_rows, labels)


def _labels_of(micro: MicroBatch, items: Tensor, losses: StreamLosses, run: Run) -> Tensor:
    """Counts the labels of each row that the loss learns, int64 `[num_rows]`; 0 for rows that have none."""
    inputs = batch_mapping(micro.inputs)
    if has_labels(inputs):  # which the loss counts as its items, unless it is a mean over rows
        counts_rows = losses.normalization_of(micro.first_stream).counts_rows
        return losses.labels_per_row(inputs) if counts_rows else items
    if (user := option_counting(run.mixing, "labels")) is not None and not micro.is_padding:
        text = f"counts labels, but a micro-batch has no 'labels', only {sorted(map(str, inputs))}. Give amounts in "
        raise wrong_value(user, f"{text}tokens or samples, or have the collator make labels.")
    return torch.zeros(num_rows(inputs), dtype=torch.int64)


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
