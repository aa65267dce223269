"""Rows to store for the samples that a buffer accepts: contents and model outputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
from torch import Tensor

from mixer.distributed.collectives import RankSync
from mixer.loading.batching import ids_of, positions_of
from mixer.loading.step import StepBatch
from mixer.mixture.cursors import StreamShare
from mixer.trainer.method import ForwardResult, RunContext
from mixer.utils.arrays import Int64Array
from replay.shared.offered import Offered
from replay.storage import Row
from replay.storage.codec import decode, encode

_HEAD = 16  # bytes before each gathered row: its number and its length
Extract = Callable[[ForwardResult], list[Tensor]]


class KeptRows:
    """Creates the rows of accepted samples, identically on every rank.

    Every rank reads the contents of indexable streams itself, exactly as for training. Rows of iterable streams and
    model outputs exist on one rank each: they are gathered.

    Args:
        run: The run.
        stream_ids: The streams to sample from.
        keeps_contents: Whether to store samples, not only model outputs.
    """

    def __init__(self, run: RunContext, stream_ids: Sequence[int], keeps_contents: bool):
        self._run, self._keeps_contents = run, keeps_contents
        self._extractors: dict[str, Extract] = {}
        self.has_iterables = keeps_contents and any(run.streams[stream_id].is_iterable for stream_id in stream_ids)
        self.num_gathered_bytes = 0

    @property
    def are_any(self) -> bool:
        """Whether rows are stored at all."""
        return self._keeps_contents or bool(self._extractors)

    @property
    def are_gathered(self) -> bool:
        """Whether the ranks exchange rows."""
        return bool(self._extractors) or self.has_iterables

    def keep(self, payload: str, extract: Extract) -> None:
        """Adds a payload to store with each sample.

        Args:
            payload: Its name.
            extract: Returns it for each row of a micro-batch, from the model output.
        """
        self._extractors[payload] = extract

    def begin(self, offered: Offered) -> None:
        """Starts a step with its offered samples, and resets the records of the last one."""
        self._offered = offered
        self._payloads: dict[int, dict[str, Tensor]] = {}

    def note(self, trained: ForwardResult) -> None:
        """Records the payloads of a micro-batch after its forward pass."""
        numbers = self._offered.of_micro_batch(trained.micro) if self._extractors else np.zeros(0, np.int64)
        if not (numbers >= 0).any():
            return
        for name, extract in self._extractors.items():
            for number, value in zip(numbers.tolist(), extract(trained), strict=True):
                if number >= 0:
                    self._payloads.setdefault(number, {})[name] = value.detach()

    def make(self, batch: StepBatch, numbers: Int64Array) -> list[Row]:
        """Creates the rows of accepted samples, one per sample; all ranks have to call it.

        Args:
            batch: The step.
            numbers: int64 `[count]`: numbers of the samples, ascending.
        """
        chosen = set(numbers.tolist())
        own = {
            number: Row(None, {name: value.cpu().numpy() for name, value in values.items()})
            for number, values in self._payloads.items()
            if number in chosen
        }
        for number, sample in self.rows_of_iterables(batch):
            if number in chosen:
                own[number] = Row(sample, own[number].payload if number in own else {})
        gathered = own
        if self.are_gathered:
            gathered, num_bytes = gather_rows(self._run.rank_sync, own)
            self.num_gathered_bytes += num_bytes
        # After the ranks have talked, for it may fail on one of them.
        samples = self.read_indexed(numbers) if self._keeps_contents else {}
        rows = []
        for number in numbers.tolist():
            row = gathered.get(number, Row())
            rows.append(Row(samples[number], row.payload) if number in samples else row)
        return rows

    def rows_of_iterables(self, batch: StepBatch) -> Iterator[tuple[int, Any]]:
        """Gives this rank's rows of iterable streams, where their contents are kept.

        Args:
            batch: The step that was trained.

        Yields:
            The number of a sample, and the sample.
        """
        if not self.has_iterables:
            return
        assert batch.samples is not None, "steps keep their samples where needs_samples is set"  # noqa: S101
        share, loaded = batch.samples
        numbers = self._offered.numbers(ids_of(share), positions_of(share))
        samples = loaded.samples(slice(None))
        for number, stream_id, sample in zip(numbers.tolist(), ids_of(share).tolist(), samples, strict=True):
            if number >= 0 and self._run.streams[stream_id].is_iterable:
                yield number, sample

    def read_indexed(self, numbers: Int64Array) -> dict[int, Any]:
        """Reads samples of indexable streams as they were to be trained on, by their ascending numbers."""
        samples: dict[int, Any] = {}
        cursors = self._run.planner().cursors
        for stream_id, are_own, positions in self._offered.by_stream(numbers):
            if not self._run.streams[stream_id].is_iterable:
                share = StreamShare(stream_id, positions, cursors[stream_id].references(positions))
                samples |= dict(zip(numbers[are_own].tolist(), self._run.runs.read(share), strict=True))
        return samples


def gather_rows(rank_sync: RankSync, own: Mapping[int, Row]) -> tuple[dict[int, Row], int]:
    """Gathers rows on all ranks; all ranks have to call it.

    Args:
        rank_sync: The collectives.
        own: This rank's rows, by number.

    Returns:
        The rows of all ranks, and the bytes transferred: 0 on a single rank.

    Raises:
        TypeError: If a row of this rank holds an unsupported type.
        RemoteError: If another rank failed that way.
    """
    if rank_sync.world_size == 1:
        return dict(own), 0
    messages = rank_sync.gather_bytes(rank_sync.run_on_all(partial(_message, own)))
    rows: dict[int, Row] = {}
    for message in messages:
        view, place = memoryview(message), 0
        while place < len(view):
            number = int.from_bytes(view[place : place + 8], "little")
            length = int.from_bytes(view[place + 8 : place + _HEAD], "little")
            rows[number] = decode(view[place + _HEAD : place + _HEAD + length])
            place += _HEAD + length
    return rows, sum(map(len, messages))


def _message(own: Mapping[int, Row]) -> bytes:
    parts = []
    for number, row in own.items():
        content = encode(row)
        parts += [number.to_bytes(8, "little"), len(content).to_bytes(8, "little"), content]
    return b"".join(parts)
