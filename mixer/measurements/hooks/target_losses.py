"""Losses of rows of targets: those compared over time, and those whose gradient is taken."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import torch
from torch import Tensor

from mixer.loading.loaded_step import MicroBatch
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.measurements.hooks.target_rows import CollatedRows, ReadRows, TargetRows, collated, evened
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.device import to_host

_ALIKE = 1e-12  # relative difference of weights that are the same but for rounding
Losses = tuple[Tensor, Tensor | None]  # of a micro-batch: the mean, and sums by row where rows can be separated


def loss_sums(targets: Sequence[TargetRows], most: int, passes: AuxiliaryPasses, joins: bool) -> FloatArray | None:
    """Returns sums over rows, `[num_targets, 5]`: of `d, n, d², dn, n²` for a row's summed loss `d` and its items `n`.

    A micro-batch counts as a row where rows cannot be separated. All ranks have to call it.

    Args:
        targets: The targets.
        most: Rows of each over all ranks, the first of its order: the same whenever this is called.
        passes: Run the model.
        joins: Whether targets that are treated alike share micro-batches.

    Returns:
        The sums over all ranks; `None` if targets shared micro-batches whose rows cannot be separated.
    """
    samples = passes.on_all_ranks(partial(_read_compared, targets, most, passes))
    while True:
        rows = evened(passes.on_all_ranks(partial(_collated_compared, samples, targets, passes, joins)), passes)
        works = [partial(_losses, passes, own.micro) for own in rows]
        if (losses := passes.fitted(works, [own.micro for own in rows])) is not None:
            break
    sums = _sums(passes, rows, losses, len(targets))
    if passes.ranks.max_over_ranks(int(sums is None)) or sums is None:
        return None
    return passes.ranks.add_up(torch.from_numpy(sums)).numpy()


def _read_compared(targets: Sequence[TargetRows], most: int, passes: AuxiliaryPasses) -> list[ReadRows]:
    rank, world_size, found = passes.trainer.args.process_index, passes.ranks.world_size, []
    for number, target in enumerate(targets):
        positions = np.arange(rank, min(most, target.num_rows), world_size, dtype=np.int64)
        # Of two rows or more, if they are each other's negatives.
        num_parts = max(1, min(passes.num_parts, -(-len(positions) // 2)))
        found += [target.read(number, part, 0) for part in np.array_split(positions, num_parts) if len(part)]
    return found


def _collated_compared(
    samples: Sequence[ReadRows], targets: Sequence[TargetRows], passes: AuxiliaryPasses, joins: bool
) -> list[CollatedRows]:
    if samples:
        return collated(samples, passes, joins)
    [row] = collated([targets[0].read(0, np.zeros(1, dtype=np.int64), 0)], passes, joins)
    return [row._replace(micro=replace(row.micro, is_padding=True))]  # to keep in step with the others


def _losses(passes: AuxiliaryPasses, micro: MicroBatch) -> Losses | None:
    is_left_out = micro.is_padding or not int(passes.items(micro).sum())
    return None if is_left_out and not passes.is_sharded else passes.mean_and_row_losses(micro)


def _sums(
    passes: AuxiliaryPasses, rows: Sequence[CollatedRows], losses: Sequence[Losses | None], num_targets: int
) -> FloatArray | None:
    """Adds up what this rank's micro-batches have shown."""
    sums = np.zeros((num_targets, 5))
    tensors = [own for pair in losses if pair is not None for own in pair if own is not None]
    values = iter(to_host(tensors))  # one read from the device
    for (micro, numbers), pair in zip(rows, losses, strict=True):
        if pair is None:
            continue
        mean, d = float(next(values)), None if pair[1] is None else next(values)
        n = passes.items(micro).double().cpu().numpy()
        total = float(n.sum())
        if micro.is_padding or not total:
            continue
        if d is None:
            if (numbers != numbers[0]).any():
                return None
            d, n, numbers = np.array([total * mean]), np.array([total]), numbers[:1]
        beyond = mean - float(d.sum()) / total  # of a loss with other terms than those of its rows
        np.add.at(sums, numbers, np.stack([d + beyond * n, n, d * d, d * n, n * n], axis=1))
    return sums


@dataclass(frozen=True)
class TargetLosses:
    """What a rank's micro-batches show of the mean losses of targets whose gradient is taken.

    Args:
        rows: The micro-batches.
        items: int64 `[num_micro_batches, num_targets]`: their items of each target.
        totals: int64 `[num_targets]`: those of all ranks.
        losses: Of each micro-batch, once there are any; `None` without weight.
    """

    rows: Sequence[CollatedRows]
    items: Int64Array
    totals: Int64Array
    losses: list[Losses | None] = field(default_factory=list)

    @classmethod
    def of(cls, rows: Sequence[CollatedRows], num_targets: int, passes: AuxiliaryPasses) -> "TargetLosses":
        """Counts the items; all ranks have to call it."""
        items = np.array([own.items(passes, num_targets) for own in rows])
        return cls(rows, items, passes.ranks.all_reduce_sum(items.sum(axis=0)))

    def have_same_weight(self, weights: FloatArray) -> bool:
        """Whether an item of each target counts alike where the targets' mean losses have weights, `[num_targets]`."""
        per_item = (weights / np.maximum(self.totals, 1))[self.totals > 0]
        return bool(np.ptp(per_item) <= _ALIKE * per_item.max()) if len(per_item) else True

    def backward(self, weights: FloatArray, passes: AuxiliaryPasses) -> bool:
        """Adds the gradient of the weighted losses to this rank's; `False` on all ranks if memory ran out on one."""
        factors = (self._shares @ weights).tolist()
        works = [
            partial(passes.backward, own.micro, factor, own.is_mixed)
            for own, factor in zip(self.rows, factors, strict=True)
        ]
        losses = passes.fitted(works, [own.micro for own in self.rows])
        self.losses.extend(losses or ())
        return losses is not None

    @property
    def _shares(self) -> FloatArray:
        shares: FloatArray = self.items / np.maximum(self.totals, 1)
        return shares

    @property
    def are_known(self) -> bool:
        """Whether the losses of all targets can be told apart."""
        pairs = zip(self.rows, self.losses, strict=True)
        return all(pair is None or not own.is_mixed or pair[1] is not None for own, pair in pairs)

    def read(self, passes: AuxiliaryPasses, product: Tensor) -> tuple[FloatArray, float]:
        """Reads them from the device, with another number.

        Args:
            passes: The ranks, all of which have to call it.
            product: A number that is the same on all ranks; of shards, to be added up over them.

        Returns:
            float64 `[num_targets]`, NaN for a target without items; and the number.
        """
        tensors = [own for pair in self.losses if pair is not None for own in pair if own is not None]
        *values, number = to_host([*tensors, product])
        means, left = np.zeros(len(self.totals)), iter(values)
        for own, items, shares, pair in zip(self.rows, self.items, self._shares, self.losses, strict=True):
            if pair is None:
                continue
            mean, by_row = float(next(left)), None if pair[1] is None else next(left)
            parts = np.full(len(means), mean)
            if by_row is not None:  # what the loss has beyond its rows' terms is that of each item
                sums = np.bincount(own.targets, by_row, len(means))
                parts += sums / np.maximum(items, 1) - sums.sum() / max(int(items.sum()), 1)
            means += np.where(items > 0, shares * parts, 0.0)
        sent = np.array([*means, float(number) * passes.is_sharded])
        totals = passes.ranks.add_up(torch.from_numpy(sent)).numpy()
        return np.where(self.totals > 0, totals[:-1], np.nan), float(totals[-1] if passes.is_sharded else number)
