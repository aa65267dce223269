"""Targets that have the name of a stream, but other rows than it."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import adaptive_avg_pool1d
from transformers.utils import logging

from mixer.loading.loaded_step import MicroBatch
from mixer.measurements import required
from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.measurements.hooks.target_rows import TargetRows, collated
from mixer.run.hooks import Observer
from mixer.utils.arrays import FloatArray
from mixer.utils.text import in_words

logger = logging.get_logger(__name__)
_MOST_ROWS, _LEAST_ROWS = 128, 16  # of a target and of its stream
_TOLD_APART = 0.8  # of rows, from which on those of two sets are unlike; of one set it is 0.5
_NUM_COUNTS = 1024  # that token ids share
_MOST_WIDTH = 4096  # of a row of fractions; wider ones, as waveforms, are averaged in parts


class Namesakes(Observer):
    """Warns, before the first step, of a target whose rows are unlike those of the stream of its name.

    Policies take such a stream for the target. A rule that has seen half of the rows says of each other row from which
    of the two it comes; chance is right half of the time. It goes by how often tokens and labels occur, and by mean
    features: a naive Bayes rule by the differences of means over their variances. No forward is run.

    Args:
        passes: Read and collate rows.
    """

    def __init__(self, passes: AuxiliaryPasses):
        self._passes, self._plan = passes, passes.plan

    def prepare(self, model: nn.Module) -> None:
        """Compares rows, on one rank; see `Observer.prepare`."""
        is_main = self._passes.trainer.is_world_process_zero()
        self._passes.on_all_ranks(self._tell if is_main else lambda: None)

    def _tell(self) -> None:
        for number, stream in enumerate(self._plan.streams):
            rows = self._plan.aim.rows.get(stream.name)
            if rows is None or stream.is_iterable or stream.is_memory:
                continue
            try:
                share = self._share(number, rows)
            except Exception as error:  # of user code or of unusual inputs: advice never ends a run
                text = "Rows of the target %r were not compared with those of the stream of its name: %s."
                logger.warning(text, stream.name, in_words(error))
                continue
            if share >= _TOLD_APART:
                logger.warning(
                    "The target %r has the name of a stream, but rows unlike its: %.0f %% of them can be told apart. "
                    "mixing=%s takes this stream for the target, and may give it most of the batch. If they are other "
                    "rows, give the evaluation set another name.",
                    *(stream.name, 100.0 * share, self._plan.policy.name),
                )

    def _share(self, number: int, rows: Any) -> float:
        """Says how many rows of a stream and of its target are told apart; 0.5 if there are too few."""
        stream, passes = self._plan.streams[number], self._passes
        most = min(_MOST_ROWS, len(rows), stream.num_samples or 0)
        if most < _LEAST_ROWS:
            return 0.5
        places = np.arange(most, dtype=np.int64)
        target = collated([TargetRows(stream.name, rows, passes).read(number, places, 0)], passes, joins=False)
        return told_apart(
            self._features([own.micro for own in target]), self._features(passes.samples({number: places}))
        )

    def _features(self, micros: Sequence[MicroBatch]) -> list[dict[str, FloatArray]]:
        return [features(micro.inputs) for micro in micros if isinstance(micro.inputs, Mapping)]


def features(inputs: Mapping[str, Any]) -> dict[str, FloatArray]:
    """Describes the rows of a micro-batch.

    Args:
        inputs: The model's inputs.

    Returns:
        `[num_rows, num_features]` by name: how often whole numbers occur, in the logarithm, and means of fractions.
        Inputs with another number of rows than the first one are left out.
    """
    found: dict[str, Tensor] = {}
    for name, values in inputs.items():
        if not isinstance(values, Tensor) or not values.dim() or not values.numel() or "mask" in name:
            continue
        values = values.detach().cpu()
        if found and len(values) != len(next(iter(found.values()))):  # images, lengths of packed rows: not by row
            continue
        if values.is_floating_point():
            rows = values.float()
            rows = rows.flatten(1, -2).mean(dim=1) if rows.dim() > 2 else rows.reshape(len(rows), -1)
            found[name] = rows if rows.shape[1] <= _MOST_WIDTH else adaptive_avg_pool1d(rows, _MOST_WIDTH)
        else:
            ids = values.reshape(len(values), -1).long().remainder(_NUM_COUNTS)
            counts = torch.zeros(len(ids), _NUM_COUNTS).scatter_add_(1, ids, torch.ones(ids.shape))
            found[name] = counts.log1p()
    return {name: own.double().numpy() for name, own in found.items()}


def told_apart(one: Sequence[Mapping[str, FloatArray]], other: Sequence[Mapping[str, FloatArray]]) -> float:
    """Says how many rows of two sets are told apart by a rule that has seen the others.

    Args:
        one: Features of the micro-batches of a set.
        other: Those of another set, with as many rows.

    Returns:
        The share that is right, of the second half of either; 0.5 if nothing can be compared.
    """
    names = sorted(set.intersection(*(set(part) for part in (*one, *other)))) if one and other else []
    widths = {name: {part[name].shape[1:] for part in (*one, *other)} for name in names}
    names = [name for name in names if len(widths[name]) == 1]
    if not names:
        return 0.5
    sets = [np.concatenate([np.hstack([part[name] for name in names]) for part in parts]) for parts in (one, other)]
    half = min(map(len, sets)) // 2
    if not half:
        return 0.5
    seen, unseen = [own[:half] for own in sets], [own[half : 2 * half] for own in sets]
    first, second = (own.mean(axis=0) for own in seen)
    variance = np.mean([own.var(axis=0) for own in seen], axis=0)
    rule = (first - second) / (variance + variance.mean() + 1e-9)
    middle = rule @ (first + second) / 2.0
    return float(np.mean([unseen[0] @ rule > middle, unseen[1] @ rule < middle]))


def new_hook(passes: AuxiliaryPasses) -> Namesakes | None:
    """Makes the hook, if rows of targets are measured."""
    follows = {"objective", "gradients between steps"} <= required(passes.plan.needs)
    return Namesakes(passes) if follows else None
