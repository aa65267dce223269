"""How much of what is forwarded is padding, by ways to make micro-batches; one rank, no model."""

from collections.abc import Iterator, Sequence
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.trainer_pt_utils import LengthGroupedSampler

from benchmarks.speed.competitors import SHARES
from mixer.loading.batching import MicroBatchOptions
from mixer.loading.build import length_groups
from mixer.loading.collate import Collation
from mixer.loading.lengths import Lengths
from mixer.loading.loader import MixingLoader
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.policies import Fixed
from mixer.utils.arrays import Int64Array

SIZES = ((64, 8), (32, 32))  # samples of a step, and of a micro-batch
_TOKENS_A_SAMPLE = 256  # of the token budget
_LEAST, _MOST = 8, 1024
# Mean of the lengths before they are clipped: exp(4.69 + 0.8² / 2) = 150.
_LOG_MEAN, _LOG_DEVIATION = 4.69, 0.8


def padding(num_streams: int, num_samples: int) -> list[dict[str, Any]]:
    """Compares ways to make micro-batches of samples of different lengths, over about an epoch.

    Args:
        num_streams: Number of streams; the Trainer has them in one data set.
        num_samples: Samples of each.

    Returns:
        For each way: `name`, `batch_size`, `micro_batch_size`, `padding` (the share of padding in what is forwarded),
        `micro_batches` of a step.
    """
    random = np.random.default_rng(0)
    lengths = [_draw_lengths(random, num_samples) for _ in range(num_streams)]
    sources = [_rows(own) for own in lengths]
    results = []
    for batch_size, size in SIZES:
        ways = {
            "mixer, random": MicroBatchOptions(size),
            "mixer, group_by_length": MicroBatchOptions(size, None, True, Lengths(sources)),
            "mixer, and a token budget": MicroBatchOptions(size, size * _TOKENS_A_SAMPLE, True, Lengths(sources)),
        }
        steps = num_streams * num_samples // batch_size
        found = {name: _sum_up(_mixed(sources, batch_size, options, steps)) for name, options in ways.items()}
        found["Trainer, group_by_length"] = _sum_up(_of_trainer(np.concatenate(lengths), batch_size, size))
        sizes = {"streams": num_streams, "batch_size": batch_size, "micro_batch_size": size}
        results += [{"name": name, **sizes, **own} for name, own in found.items()]
    return results


def _draw_lengths(random: np.random.Generator, num_samples: int) -> Int64Array:
    lengths = np.rint(random.lognormal(_LOG_MEAN, _LOG_DEVIATION, num_samples))
    return lengths.clip(_LEAST, _MOST).astype(np.int64)


def _rows(lengths: Int64Array) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"input_ids": [np.ones(length, dtype=np.int64) for length in lengths]})


def _pad(samples: list[Any]) -> dict[str, Tensor]:
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    return {"input_ids": pad_sequence(rows, batch_first=True)}


def _mixed(
    sources: Sequence[Any], batch_size: int, options: MicroBatchOptions, steps: int
) -> Iterator[list[tuple[int, int]]]:
    """Yields for each step the tokens of its micro-batches, with padding and without."""
    streams = [Stream(f"stream{number}", source) for number, source in enumerate(sources)]
    groups = length_groups(streams, batch_size, options.lengths if options.groups_by_length else None)
    clock = Clock(batch_size=batch_size, epoch_size=steps * batch_size, budget=Budget(steps=10**9))
    shares = list(SHARES[: len(sources)])
    mixing = Mixing(Planner(streams, seed=0, length_groups=groups), Fixed(shares), clock)
    loader = MixingLoader(mixing, sources, Collation(_pad, mixing.names), micro_batches=options)
    for _ in range(steps):
        batch = loader.next_batch()
        assert batch is not None, "the streams have no end"
        mixing.observe(batch.plan, batch.plan.counts, {})
        ids = [micro.inputs["input_ids"] for micro in batch.micro_batches]
        yield [(own.numel(), int(own.count_nonzero())) for own in ids]


def _of_trainer(lengths: Int64Array, batch_size: int, size: int) -> Iterator[list[tuple[int, int]]]:
    """Does what the Trainer's sampler and accumulation do with the data sets in a row; see `_mixed`."""
    generator = torch.Generator().manual_seed(0)
    indices = np.array([*LengthGroupedSampler(batch_size, lengths=lengths.tolist(), generator=generator)])
    for start in range(0, len(indices) - batch_size + 1, batch_size):
        rows = lengths[indices[start : start + batch_size]].reshape(-1, size)
        yield [(int(row.max()) * len(row), int(row.sum())) for row in rows]


def _sum_up(steps: Iterator[list[tuple[int, int]]]) -> dict[str, float]:
    tokens = [np.array(step) for step in steps]
    forwarded, own = np.concatenate(tokens).sum(axis=0).tolist()
    return {"padding": 1 - own / forwarded, "micro_batches": float(np.mean([len(step) for step in tokens]))}
