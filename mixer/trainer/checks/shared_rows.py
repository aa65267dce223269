"""Rows of evaluation sets that are trained on, and streams that are one data set."""

from collections.abc import Hashable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import datasets
import numpy as np
from torch.utils.data import Subset
from transformers.utils import logging

from mixer.loading.row_digest import row_digests
from mixer.mixture.stream import Stream, is_iterable
from mixer.utils.arrays import Int64Array, UInt64Array

logger = logging.get_logger(__name__)

# What is read at most of a set, of a list, and of all together, so that a start stays short.
_MOST_ROWS, _MOST_LISTED, _MOST_ROWS_TOGETHER, _MOST_BYTES_TOGETHER = 1_000_000, 100_000, 4_000_000, 1 << 30
_BLOCK = 100  # rows of a sample that follow one another, which is faster to read
_MOST_NAMED = 5
_MOST_LOOKED_UP, _MOST_OWNERS = 100, 100  # rows of a stream by which its twins are found, and twins by one row
# Streams that differ in one of these learn different things of the same rows.
_LEARNED_BY = ("preprocess", "data_collator", "label_names", "compute_loss_func")
_ONE_SET = 0.5  # share of the rows of each that two streams have in common, from which on they count as one set
_ODD = np.uint64(0x9E3779B97F4A7C15)


class _Rows(NamedTuple):
    """Different rows of a data set: of all rows, or of some that are spread evenly.

    Attributes:
        digests: uint64 `[num_different]`: their digests, sorted.
        numbers: int64 `[num_different]`: the number of the first row with each.
        is_sample: Whether there are rows that were not read.
    """

    digests: UInt64Array
    numbers: Int64Array
    is_sample: bool

    def shared_with(self, others: UInt64Array) -> Int64Array:
        """Returns the numbers of the rows that are among others, given by sorted digests."""
        if not len(others):
            return self.numbers[:0]
        places = np.minimum(np.searchsorted(others, self.digests), len(others) - 1)
        shared: Int64Array = self.numbers[others[places] == self.digests]
        return shared


def tell_shared_rows(streams: Sequence[Stream], has_heads: bool, eval_dataset: Any) -> str | None:
    """Warns of rows of evaluation sets that streams have, too, and of two streams that are one data set.

    Rows of a `datasets.Dataset` and of a list are compared by digests of all their columns. Rows of other data sets may
    be slow to read, or new each time: only the same row of the same object, such as of a `Subset`, is found.

    Args:
        streams: The streams.
        has_heads: Whether the model has one head per task: streams of two heads learn different things.
        eval_dataset: The trainer's argument.

    Returns:
        The warning of evaluation sets; `None` if none is known to be trained on.
    """
    sets = _by_name(eval_dataset)
    known = [stream for stream in streams if not stream.is_memory and _is_known(stream.dataset)]
    alike = [pair for group in _groups(known, has_heads) for pair in pairwise(group) if _is_half(*pair)]
    paired = {stream.name for pair in alike for stream in pair}
    read = known if sets else [stream for stream in known if stream.name in paired]
    num_sets = len(read) + len(sets)
    trained = {f"the stream {stream.name!r}": _read(stream.dataset, num_sets) for stream in read}
    _tell_twins(trained, [one for one in read if one.name in paired], has_heads)
    told = _in_words(trained, {called: _read(own, num_sets) for called, own in sets.items()})
    if told is not None:
        logger.warning("%s Take them out of the streams, or evaluate on others.", told)
    return told


def rows_trained_on(trained: Mapping[str, Any], evaluated: Mapping[str, Any]) -> str | None:
    """Says which rows that are evaluated on are trained on, too; see `tell_shared_rows`.

    Args:
        trained: Data sets, by what they are called in a sentence.
        evaluated: Others.
    """
    parts = [{called: own for called, own in sets.items() if _is_known(own)} for sets in (trained, evaluated)]
    num_sets = sum(map(len, parts))
    return _in_words(*({called: _read(own, num_sets) for called, own in sets.items()} for sets in parts))


def _by_name(eval_dataset: Any) -> dict[str, Any]:
    is_several = isinstance(eval_dataset, Mapping)
    sets = {f"eval_dataset[{name!r}]": own for name, own in eval_dataset.items()} if is_several else None
    return {called: own for called, own in (sets or {"eval_dataset": eval_dataset}).items() if _is_known(own)}


def _is_known(dataset: Any) -> bool:
    is_map_style = hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__") and not is_iterable(dataset)
    return is_map_style and not isinstance(dataset, str | Mapping) and len(dataset) > 0


def _groups(streams: Sequence[Stream], has_heads: bool) -> list[list[Stream]]:
    """Groups the streams that learn the same of the same rows, each group by size."""
    groups: dict[Hashable, list[Stream]] = {}
    for stream in streams:
        learned_by = (getattr(stream, name) for name in _LEARNED_BY)
        key = *(own if isinstance(own, Hashable) else repr(own) for own in learned_by), _head_of(stream, has_heads)
        groups.setdefault(key, []).append(stream)
    return [sorted(group, key=lambda stream: len(stream.dataset)) for group in groups.values()]


def _head_of(stream: Stream, has_heads: bool) -> str | None:
    return (stream.head or stream.name) if has_heads else None


def _is_half(one: Stream, other: Stream) -> bool:
    sizes = sorted((len(one.dataset), len(other.dataset)))
    return sizes[0] >= _ONE_SET * sizes[1]


def _in_words(trained: Mapping[str, _Rows], evaluated: Mapping[str, _Rows]) -> str | None:
    together = np.sort(np.concatenate([np.empty(0, np.uint64), *(rows.digests for rows in trained.values())]))
    found = [
        (f"{_counted(shared, own)} of {called} are in {other}, row {shared.min():,} among them", own, rows)
        for called, own in evaluated.items()
        if own.shared_with(together).size
        for other, rows in trained.items()
        if (shared := own.shared_with(rows.digests)).size
    ]
    if not found:
        return None
    told = "; ".join(text for text, *_ in found[:_MOST_NAMED])
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    is_sample = any(rows.is_sample for _, *both in found for rows in both)
    sampled = " Large sets are compared by a sample, so there may be more." if is_sample else ""
    return f"Rows of evaluation sets are trained on: {told}{more}.{sampled}"


def _counted(shared: Int64Array, rows: _Rows) -> str:
    return f"{len(shared):,} of {len(rows.digests):,} different rows"


def _tell_twins(rows: Mapping[str, _Rows], streams: Sequence[Stream], has_heads: bool) -> None:
    """Warns once of the pairs of streams that are one data set."""
    group_of = {stream.name: number for number, own in enumerate(_groups(streams, has_heads)) for stream in own}
    read = [f"the stream {stream.name!r}" for stream in streams]
    found = [
        (_counted(shared, rows[read[one]]), read[one], read[other])
        for one, other in _with_common_rows([rows[name] for name in read])
        if group_of[streams[one].name] == group_of[streams[other].name] and _is_half(streams[one], streams[other])
        if (shared := _twin_rows(rows[read[one]], rows[read[other]])).size
    ]
    if not found:
        return
    texts = [f"{counted} of {name} are in {other}" for counted, name, other in found]
    more = f" and {len(found) - _MOST_NAMED} more" if len(found) > _MOST_NAMED else ""
    logger.warning(
        "%s%s. If two streams are one data set, leave one out, and set the weight of the other.",
        *(", ".join(texts[:_MOST_NAMED]), more),
    )


def _with_common_rows(rows: Sequence[_Rows]) -> Iterator[tuple[int, int]]:
    """Finds the pairs in which the second has one of some rows of the first, by one sorted list of all rows."""
    digests = np.concatenate([np.empty(0, np.uint64), *(own.digests for own in rows)])
    owners = np.repeat(np.arange(len(rows)), [len(own.digests) for own in rows])
    order = np.argsort(digests, kind="stable")
    digests, owners = digests[order], owners[order]
    for number, own in enumerate(rows):
        few = own.digests[:: max(1, len(own.digests) // _MOST_LOOKED_UP)]
        starts, ends = np.searchsorted(digests, few), np.searchsorted(digests, few, side="right")
        others: set[int] = set()
        for place in np.flatnonzero(ends - starts > 1):  # most rows are in one stream
            later = owners[starts[place] : ends[place]]
            first = int(np.searchsorted(later, number, side="right"))
            others.update(later[first : first + _MOST_OWNERS].tolist())
        yield from ((number, other) for other in sorted(others))


def _twin_rows(one: _Rows, other: _Rows) -> Int64Array:
    """Returns the rows that a stream shares with another; none if they are less than half of either."""
    shared = one.shared_with(other.digests)  # of different rows: as many of the other
    return shared if len(shared) >= _ONE_SET * max(len(one.digests), len(other.digests)) else shared[:0]


def _read(dataset: Any, num_sets: int) -> _Rows:
    """Computes the digests of a data set's rows: of as many as the number of data sets allows."""
    base: Any = dataset
    places: Int64Array = np.arange(len(dataset))
    while isinstance(base, Subset):
        places = np.asarray(base.indices, np.int64)[places]
        base = base.dataset
    most = min(_MOST_ROWS, _MOST_ROWS_TOGETHER // num_sets)
    if isinstance(base, datasets.Dataset):
        bytes_per_row = base.data.nbytes // max(1, base.data.num_rows) or 1
        most = min(most, _MOST_BYTES_TOGETHER // num_sets // bytes_per_row)
    elif isinstance(base, list | tuple):
        most = min(most, _MOST_LISTED // num_sets)
    chosen = _evenly(len(places), max(_BLOCK, most))
    places = places[chosen]
    if isinstance(base, datasets.Dataset | list | tuple):
        digests = row_digests(base, places)
    else:  # a row by its place in this object
        digests = places.astype(np.uint64) * _ODD + np.uint64(id(base))
    different, firsts = np.unique(digests, return_index=True)
    return _Rows(different, chosen[firsts], len(chosen) < len(dataset))


def _evenly(num_rows: int, most: int) -> Int64Array:
    """Returns up to `most` places of rows, in evenly spaced blocks."""
    if num_rows <= most:
        return np.arange(num_rows)
    starts = np.linspace(0, num_rows - _BLOCK, max(1, most // _BLOCK)).astype(np.int64)
    return np.unique((starts[:, None] + np.arange(_BLOCK)).ravel())
