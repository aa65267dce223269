"""Rows to store for the samples that a buffer accepts: contents and model outputs."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from torch import Tensor

from mixer.distributed.collectives import RankSync
from mixer.loading.loaded_step import StepBatch
from mixer.mixture.step_plan import StreamShare, ids_of, positions_of
from mixer.run.hooks import ForwardResult
from mixer.trainer.method import RunContext
from mixer.utils.arrays import Int64Array
from replay.memory.memory import Memory
from replay.shared.offered import Offered
from replay.storage import Row
from replay.storage.codec import decode, encode
from replay.storage.row_file import RowTable, to_message

Extract = Callable[[ForwardResult], list[Tensor]]


class KeptRows:
    """Creates the rows of accepted samples, identically on every rank.

    Every rank reads the contents of indexable streams itself, exactly as for training. Rows of iterable streams and
    model outputs exist on one rank each: they are gathered.

    Args:
        run: The run.
        stream_ids: The streams to sample from.
        buffer: The buffer, which stores samples or only model outputs, and counts the bytes that are gathered.
    """

    def __init__(self, run: RunContext, stream_ids: Sequence[int], buffer: Memory):
        self._run, self._buffer, self._keeps_contents = run, buffer, buffer.storage.keeps_contents
        self._extractors: dict[str, Extract] = {}
        are_iterable = (run.streams[stream_id].is_iterable for stream_id in stream_ids)
        self.has_iterables = self._keeps_contents and any(are_iterable)

    @property
    def are_any(self) -> bool:
        """Whether rows are stored at all."""
        return self._keeps_contents or bool(self._extractors)

    @property
    def depend_on_model(self) -> bool:
        """Whether they hold model outputs, which change when the sample is trained on again."""
        return bool(self._extractors)

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
        numbers = self._offered.of_micro_batch(trained.micro)
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
        for number, sample in self._rows_of_iterables(batch):
            if number in chosen:
                own[number] = Row(sample, own.get(number, Row()).payload)
        if self.are_gathered:
            own, num_bytes = gather_rows(self._run.rank_sync, own)
            self._buffer.num_gathered_bytes += num_bytes
        # After the ranks have talked, for it may fail on one of them.
        for number, sample in self._read_indexed(numbers) if self._keeps_contents else ():
            own[number] = Row(sample, own.get(number, Row()).payload)
        return [own.get(number, Row()) for number in numbers.tolist()]

    def _rows_of_iterables(self, batch: StepBatch) -> Iterator[tuple[int, Any]]:
        """Yields this rank's rows of iterable streams, by number, if contents are stored."""
        if not self.has_iterables:
            return
        assert batch.samples is not None, "a buffer of iterable streams needs samples"  # noqa: S101
        share, loaded = batch.samples
        numbers = self._offered.numbers(ids_of(share), positions_of(share))
        samples = loaded.samples(slice(None))
        for number, stream_id, sample in zip(numbers.tolist(), ids_of(share).tolist(), samples, strict=True):
            if number >= 0 and self._run.streams[stream_id].is_iterable:
                yield number, sample

    def _read_indexed(self, numbers: Int64Array) -> Iterator[tuple[int, Any]]:
        """Reads samples of indexable streams as they were to be trained on, by their ascending numbers."""
        cursors = self._run.planner().cursors
        for stream_id, are_own, positions in self._offered.by_stream(numbers):
            if not self._run.streams[stream_id].is_iterable:
                share = StreamShare(stream_id, positions, cursors[stream_id].references(positions))
                yield from zip(numbers[are_own].tolist(), self._run.passes.read(share), strict=True)


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
    message = rank_sync.run_on_all(lambda: to_message({number: encode(row) for number, row in own.items()}))
    messages = rank_sync.gather_bytes(message)
    tables = [RowTable(message, "a message of a rank").read_all() for message in messages]
    return {number: decode(row) for table in tables for number, row in table.items()}, sum(map(len, messages))
