"""How much of what is forwarded is padding, with and without grouping by length."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import datasets
import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence
from transformers.trainer_pt_utils import get_length_grouped_indices

from benchmarks.speed.competitors import SHARES, new_mixing
from mixer.loading.batching import MicroBatchOptions
from mixer.loading.lengths import Lengths
from mixer.loading.loader import MixingLoader
from mixer.loading.step import StepBatch
from mixer.measurements import Loss
from mixer.utils.arrays import Int64Array

BATCH_SIZE = 64
MICRO_BATCH_SIZE = 8
_MAX_TOKENS = MICRO_BATCH_SIZE * 256
_LEAST, _MOST = 8, 1024
# Mean of the lengths before they are clipped: exp(4.69 + 0.8² / 2) = 150.
_LOG_MEAN, _LOG_DEVIATION = 4.69, 0.8
TRAINER = "Trainer, group_by_length"


def padding(steps: int, num_samples: int) -> list[Any]:
    """Compares ways to make micro-batches of samples of different lengths.

    Args:
        steps: Number of steps.
        num_samples: Samples of each of the three streams.

    Returns:
        For each way and number of ranks: `padding`, the share of padding in what is forwarded; `padding_and_waiting`,
        the same with what the rank with the most tokens of a step has more than the others; `micro_batches` of an
        step of a rank; `thousand_tokens` forwarded in a step by all ranks, padding included.
    """
    random = np.random.default_rng(0)
    lengths = [_draw_lengths(random, num_samples) for _ in SHARES]
    with_column, without = [_rows(own, True) for own in lengths], [_rows(own, False) for own in lengths]
    results = []
    for world_size in (1, 2):
        ways: dict[str, tuple[Sequence[Any], bool, int | None]] = {
            "mixer, as they come": (without, False, None),
            "mixer, group_by_length": (without, True, None),
            "mixer, group_by_length and token budget": (without, True, _MAX_TOKENS),
        }
        if world_size > 1:
            ways["mixer, group_by_length, length column"] = (with_column, True, None)
            ways["mixer, group_by_length and token budget, length column"] = (with_column, True, _MAX_TOKENS)
        for name, (sources, groups, max_tokens) in ways.items():
            batches = _updates(sources, world_size, groups, max_tokens, steps)
            results.append({"name": name, "world_size": world_size, **_sum_up(batches)})
        batches = _trainer_steps(np.concatenate(lengths), world_size)
        results.append({"name": TRAINER, "world_size": world_size, **_sum_up(batches)})
    return results


def _draw_lengths(random: np.random.Generator, num_samples: int) -> Int64Array:
    lengths = np.rint(random.lognormal(_LOG_MEAN, _LOG_DEVIATION, num_samples))
    return lengths.clip(_LEAST, _MOST).astype(np.int64)


def _rows(lengths: Int64Array, has_column: bool) -> datasets.Dataset:
    columns: dict[str, Any] = {"input_ids": [np.ones(length, dtype=np.int64) for length in lengths]}
    return datasets.Dataset.from_dict({**columns, "length": lengths} if has_column else columns)


def _pad(samples: list[Any]) -> dict[str, Tensor]:
    rows = [torch.tensor(sample["input_ids"]) for sample in samples]
    return {"input_ids": pad_sequence(rows, batch_first=True)}


def _updates(
    sources: Sequence[Any], world_size: int, groups: bool, max_tokens: int | None, steps: int
) -> Iterator[list[list[tuple[int, int]]]]:
    """Runs the loaders of all ranks.

    Yields:
        For each step and rank the tokens of its micro-batches, with padding and without.
    """
    # What the ranks agree on is found out by loaders of their own, which run one step ahead.
    own_numbers: list[int] = []
    scouts = [_loader(sources, rank, world_size, groups, max_tokens, int) for rank in range(world_size)]
    loaders = [
        _loader(sources, rank, world_size, groups, max_tokens, lambda _: max(own_numbers)) for rank in range(world_size)
    ]
    for _ in range(steps):
        own_numbers[:] = [len(_next_batch(scout).micro_batches) for scout in scouts]
        yield [[_tokens(micro) for micro in _next_batch(loader).micro_batches] for loader in loaders]


def _loader(
    sources: Sequence[Any],
    rank: int,
    world_size: int,
    groups: bool,
    max_tokens: int | None,
    agree_on_most: Callable[[int], int],
) -> MixingLoader:
    lengths = Lengths(sources) if groups or max_tokens else None
    options = MicroBatchOptions(MICRO_BATCH_SIZE, max_tokens, groups, lengths, agree_on_most)
    mixing = new_mixing(sources, SHARES, BATCH_SIZE)
    return MixingLoader(mixing, sources, _pad, rank=rank, world_size=world_size, micro_batches=options)


def _next_batch(loader: MixingLoader) -> StepBatch:
    batch = loader.next_batch()
    assert batch is not None, "the streams have no end"
    loader.mixing.observe(batch.plan, batch.plan.counts, {Loss: np.ones(len(SHARES))})
    return batch


def _tokens(micro: Any) -> tuple[int, int]:
    ids = micro.inputs["input_ids"]
    return ids.numel(), 0 if micro.is_padding else int(ids.count_nonzero())


def _trainer_steps(lengths: Int64Array, world_size: int) -> Iterator[list[list[tuple[int, int]]]]:
    """Does what the Trainer's sampler and accumulation do with the data sets in a row; see `_updates`."""
    generator = torch.Generator().manual_seed(0)
    indices = get_length_grouped_indices(lengths.tolist(), BATCH_SIZE // world_size, generator=generator)
    for start in range(0, len(indices) - BATCH_SIZE + 1, BATCH_SIZE):
        rows = lengths[indices[start : start + BATCH_SIZE]].reshape(-1, MICRO_BATCH_SIZE)
        tokens = [(int(row.max()) * len(row), int(row.sum())) for row in rows]
        yield [tokens[rank::world_size] for rank in range(world_size)]


def _sum_up(batches: Iterator[list[list[tuple[int, int]]]]) -> dict[str, float]:
    forwarded = own = slowest = micro_batches = num_steps = 0
    for ranks in batches:
        totals = [sum(padded for padded, _ in micros) for micros in ranks]
        forwarded += sum(totals)
        slowest += max(totals) * len(ranks)
        own += sum(tokens for micros in ranks for _, tokens in micros)
        micro_batches += len(ranks[0])
        num_steps += 1
    return {
        "padding": 1 - own / forwarded,
        "padding_and_waiting": 1 - own / slowest,
        "micro_batches": micro_batches / num_steps,
        "thousand_tokens": forwarded / num_steps / 1e3,
    }
