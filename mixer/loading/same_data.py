"""Checks that all ranks have the same rows: by a sample of them, before the first step."""

import logging
import time
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import datasets
import numpy as np
import pyarrow as pa

from mixer.distributed.collectives import RankSync
from mixer.loading.row_digest import row_digests
from mixer.mixture.permutation import Permutation
from mixer.mixture.stream import GrowingDataset, Stream, is_iterable
from mixer.utils.arrays import Int64Array, UInt64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.random_state import seeded

logger = logging.getLogger(__name__)
_MOST_ROWS, _LEAST_ROWS, _MOST_ROWS_OF_ALL = 64, 4, 4_096
_SECONDS = 2.0  # for the rows of all sets that are not stored; at least one row of each is read
_UNKNOWN = np.int64(0)
_LEAST, _MOST = np.iinfo(np.int64).min, np.iinfo(np.int64).max


class RankData(NamedTuple):
    """A data set that all ranks should have alike.

    Args:
        option: The argument that it was given as.
        name: Name of the stream or evaluation set; empty for the only evaluation set.
        dataset: The data set.
        key: Key of the choice of rows.
        is_random: Whether its samples are declared random.
    """

    option: str
    name: str
    dataset: Any
    key: int
    is_random: bool = False

    def described(self) -> dict[str, Any]:
        """Returns what it tells without reading a row."""
        columns, length = getattr(self.dataset, "column_names", None), _length(self.dataset)
        shards = getattr(self.dataset, "num_shards", None) if length is None else None
        described = {"rows": length, "columns": None if columns is None else sorted(columns), "shards": shards}
        return {name: value for name, value in described.items() if value is not None}


def data_of_ranks(streams: Sequence[Stream], eval_dataset: Any, seed: int) -> list[RankData]:
    """Lists the data sets of a run.

    Args:
        streams: Its streams; buffers are left out, because ranks fill them alike.
        eval_dataset: Evaluation data of the trainer.
        seed: Seed of the data.
    """
    sets = eval_dataset if isinstance(eval_dataset, Mapping) else {"": eval_dataset}
    own = [
        RankData("train_dataset", stream.name, stream.dataset, stream.order_key(seed), stream.is_random is True)
        for stream in streams
        if not stream.is_memory
    ]
    return own + [RankData("eval_dataset", str(name), data, seed) for name, data in sets.items() if data is not None]


def check_same_rows(data: Sequence[RankData], rank_sync: RankSync) -> None:
    """Refuses ranks whose data differ; all ranks must call it, with data that are as long on all.

    Up to 64 rows of each set are compared, chosen by its key. Rows of a `datasets.Dataset` are compared as they are
    stored, before transforms, without files that it refers to. Other samples are read twice; those that cannot be
    read, or are not the same twice, are left out, as are streams that are declared random. Iterable data sets are not
    read.

    Args:
        data: The data sets of this rank.
        rank_sync: Collectives.

    Raises:
        InvalidValueError: On all ranks, with the data set and the ranks that differ from the first.
    """
    read = [part for part in data if not (part.is_random or _length(part.dataset) is None)]
    if rank_sync.world_size == 1 or not read:
        return
    num_rows = int(np.clip(_MOST_ROWS_OF_ALL // len(read), _LEAST_ROWS, _MOST_ROWS))
    own = np.stack([_digests_of(part, num_rows, _SECONDS / len(read)) for part in read])
    is_known = own != _UNKNOWN
    most = rank_sync.all_reduce_max(np.where(is_known, own, _LEAST))
    least = rank_sync.all_reduce_min(np.where(is_known, own, _MOST))
    differ = (most > least) & (most != _LEAST)
    if not differ.any():
        return
    place = int(np.argmax(differ.any(axis=1)))
    rows = np.stack([np.frombuffer(part, dtype=np.int64) for part in rank_sync.gather_bytes(own[place].tobytes())])
    raise _error(read[place], rows)


def _error(data: RankData, rows: Int64Array) -> InvalidValueError:
    """Describes which ranks have other rows, int64 `[world_size, num_rows]`."""
    known = rows != _UNKNOWN
    first = rows[np.argmax(known, axis=0), np.arange(rows.shape[1])]  # of the first rank that knows the row
    others = (rows != first) & known
    ranks = np.flatnonzero(others.any(axis=1)).tolist()
    share = f"{int(others.any(axis=0).sum())} of {int(known.any(axis=0).sum())} rows that were compared"
    called = f"Stream {data.name!r}" if data.option == "train_dataset" else f"{data.option}[{data.name!r}]"
    called = called if data.name else data.option
    hint = (
        "Give all ranks the same files, in one order, and a seed wherever data are split or shuffled. Do not divide "
        "data between ranks: the trainer does. If reading a row draws random numbers, set Stream(..., is_random=True)."
    )
    return InvalidValueError(
        f"{called} has other rows on {'rank' if len(ranks) == 1 else 'ranks'} {', '.join(map(str, ranks))} than on "
        f"rank 0: {share} differ. {hint}",
        option=data.option,
        stream=data.name,
        expected="the same rows on all ranks",
        found=ranks,
        hint=hint,
    )


def _length(dataset: Any) -> int | None:
    if is_iterable(dataset) or isinstance(dataset, GrowingDataset) or not hasattr(dataset, "__getitem__"):
        return None
    return len(dataset) if hasattr(dataset, "__len__") else None


def _digests_of(data: RankData, num_rows: int, seconds: float) -> Int64Array:
    """Returns digests of some rows, int64 `[num_rows]`; 0 of those that are not compared."""
    digests, length = np.zeros(num_rows, dtype=np.uint64), len(data.dataset)
    indices = Permutation(length, data.key).indices(0, min(length, num_rows)) if length else np.zeros(0, np.int64)
    try:
        stored = isinstance(data.dataset, datasets.Dataset)
        found = _stored(data.dataset, indices) if stored else _repeatable(data.dataset, indices, seconds)
        digests[: len(found)] = found
    except Exception:  # a set that cannot be read is told when it is used
        logger.debug("Rows of %r cannot be compared.", data.name, exc_info=True)
    return digests.view(np.int64)


def _stored(dataset: datasets.Dataset, indices: Int64Array) -> UInt64Array:
    """Digests rows without columns of files, such as images, whose paths may differ between nodes."""
    schema = dataset.data.schema
    names = [name for name in dataset.column_names if not holds_files(schema.field(name).type)]
    if not names or not len(indices):
        return np.zeros(0, dtype=np.uint64)
    return row_digests(dataset.select_columns(names), indices)


def holds_files(kind: pa.DataType) -> bool:
    """Whether a column of an Arrow type has files, such as images, by their bytes or paths."""
    if hasattr(kind, "value_type"):
        return holds_files(kind.value_type)
    return pa.types.is_struct(kind) and {"bytes", "path"} <= {field.name for field in kind}


def _repeatable(dataset: Any, indices: Int64Array, seconds: float) -> UInt64Array:
    """Digests samples that are the same when they are read again, as many as time allows."""
    found, end = np.zeros(len(indices), dtype=np.uint64), time.monotonic() + seconds
    for place in range(len(indices)):
        row = indices[place : place + 1]
        try:
            with seeded(place):  # random numbers drawn here must not affect the run
                first = row_digests(dataset, row)
            with seeded(place):
                found[place] = first[0] if first == row_digests(dataset, row) else 0
        except Exception:  # a sample that cannot be read is told, or skipped, when it is drawn
            found[place] = 0
        if time.monotonic() > end:
            break
    return found
