"""The replay buffer: a growing and forgetting data set that is a stream of the mixture."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike

from mixer.distributed.collectives import RankSync
from mixer.loading.loaded_step import StepBatch
from mixer.mixture.planner import Planner
from mixer.mixture.step_plan import StepPlan
from mixer.mixture.stream import Stream
from mixer.trainer.method import Method, RunContext
from mixer.utils.arrays import Int64Array
from mixer.utils.data_set import DataSet
from mixer.utils.errors import InvalidTypeError, InvalidValueError
from mixer.utils.ranges import check_count
from replay.feeding.feeding import BufferFeeding
from replay.memory.drawing import BufferCursor
from replay.memory.memory import Memory
from replay.retrieval import Retrieval, as_retrieval
from replay.second_draw import SecondDraw
from replay.selection import Offers, Selection, as_selection
from replay.shared.arguments import as_column, as_names, as_payloads, as_whole_numbers
from replay.storage import Row, Storage, as_storage
from replay.storage.sources import addresses


class ReplayBuffer(Memory):
    """Stores samples of the other streams of a mixture and replays them as a stream of its own.

    `MixingTrainer(train_dataset={"new": new, "memory": ReplayBuffer(1000)}, mixing=ReplayRatio(0.1))` is experience
    replay: after each step the buffer is offered the samples of that step, and a part of the next step is drawn from
    it. All ranks hold the same buffer, and resuming is exact. A buffer can also be filled explicitly (`remember`), for
    example at the end of a task, and passed from one run to the next.

    Args:
        capacity: Largest number of entries.
        selection: Which samples to keep: a `replay.selection` or its name.
        storage: Where to keep them: `References()` into their data sets, `InMemory()` or `OnDisk(folder)`.
        retrieval: Which entries to replay: a `replay.retrieval` or its name.
        streams: Names of the streams to sample from; `None` for all that are not buffers.
        is_online: Whether to offer samples as they are trained on; otherwise only `remember` adds samples.
        label_column: Column or attribute of the classes, for class-based selection; no other is used. `None` uses
            `"label"`, or `"labels"` or `targets` if it holds one integer per sample.
        seed: Random key of the buffer; `None` derives it from the seed of its first run.
        keeps_repeats: Whether a sample that comes again, as in a second epoch, counts as another one and may be stored
            twice. Rows of iterable streams always do, since nothing tells which they are.

    Raises:
        ValueError: If the capacity is below 1 or below the minimum of the selection.
        TypeError: If an argument has the wrong type.

    Example:
        >>> buffer = ReplayBuffer(2, seed=0)
        >>> buffer.remember("letters", ["a", "b", "c"])
        >>> len(buffer), buffer.num_offered
        (2, 3)
    """

    def __init__(
        self,
        capacity: int,
        selection: Selection | str = "Reservoir",
        storage: Storage | str = "references",
        retrieval: Retrieval | str = "Uniform",
        *,
        streams: Sequence[str] | None = None,
        is_online: bool = True,
        label_column: str | None = None,
        seed: int | None = None,
        keeps_repeats: bool = False,
    ):
        check_count("capacity", capacity, 1, "it is the number of samples that the buffer holds")
        if not isinstance(label_column, (str, type(None))):
            raise InvalidTypeError(option="label_column", expected="the name of a column", found=label_column)
        if isinstance(seed, bool) or not isinstance(seed, (int, np.integer, type(None))):
            raise InvalidTypeError(option="seed", expected="a whole number", found=seed)
        super().__init__(int(capacity), as_selection(selection), as_storage(storage), as_retrieval(retrieval))
        self.is_online, self.label_column, self.keeps_repeats = is_online, label_column, keeps_repeats
        self.stream_names = as_names("streams", streams)
        self.feeding: BufferFeeding | None = None  # in the run that the buffer takes part in
        if is_online and self.selection.is_by_task:
            text = "chooses at the end of a task: set is_online=False, and call remember(...) after each task."
            raise InvalidValueError.about("selection", f"{self.selection.name} {text}", found=self.selection.name)
        self._derives_key = seed is None
        if seed is not None:
            self.start_if_new(int(seed))

    def __getitem__(self, slot: int) -> Any:
        """Returns the sample of the entry in a slot, `0 <= slot < len(self)`."""
        if not 0 <= slot < len(self):
            raise IndexError(f"The buffer has {len(self)} entries, numbered from 0; there is none at {slot}.")
        return self.reader({})[int(self.addresses(np.array([slot]))[0])]

    def __repr__(self) -> str:
        return f"ReplayBuffer({len(self)} of {self.capacity}, {self.selection.name}, {self.storage})"

    # ---- Taking in ----

    def remember(
        self,
        source: str,
        dataset: DataSet,
        indices: Iterable[int] | None = None,
        *,
        labels: ArrayLike | None = None,
        losses: ArrayLike | None = None,
        features: ArrayLike | None = None,
        payloads: Mapping[str, Sequence[Any]] | None = None,
    ) -> None:
        """Offers samples of a data set, for example at the end of a task; all ranks must make the same call.

        Args:
            source: Name of the data set, which counts as a task; the name of the stream if it is one.
            dataset: The data set.
            indices: The samples, in order; `None` for all.
            labels: int `[count]`: their classes; `None` looks for a column of labels.
            losses: `[count]`: their mean losses, for loss-based selection.
            features: `[count, num_features]`, for feature-based selection; see `replay.extract_features`.
            payloads: Extra arrays for a method, by name: one array per sample.

        Raises:
            ValueError: If the selection needs a missing argument, lengths differ, or an index is out of range.
            TypeError: If the data set cannot be indexed, or an argument has the wrong type.
        """
        picked = _checked_numbers(source, dataset, indices)
        self.start_if_new(0)
        source_id = self.sources.add(source, dataset, is_read=not self.storage.keeps_contents)
        where = addresses(source_id, picked)
        if labels is None and "label" in self.selection.needs:
            labels = self.read_labels(where)
        offers = Offers(
            count=len(picked),
            first=self.num_offered,
            tasks=np.full(len(picked), source_id, dtype=np.int64),
            labels=as_column("labels", labels, len(picked)),
            losses=as_column("losses", losses, len(picked)),
            features=as_column("features", features, len(picked)),
        )
        given = as_payloads(payloads, len(picked))

        def make_rows(numbers: Int64Array) -> list[Row]:
            samples = self.sources.read(where[numbers]) if self.storage.keeps_contents else [None] * len(numbers)
            return [
                Row(sample, {name: np.asarray(values[number]) for name, values in given.items()})
                for sample, number in zip(samples, numbers.tolist(), strict=True)
            ]

        keeps_rows = self.storage.keeps_contents or bool(given)
        self.offer(offers, lambda numbers: where[numbers], make_rows if keeps_rows else None, renews_rows=bool(given))

    def find(self, source: str, indices: Iterable[int]) -> list[int]:
        """Returns the numbers of the entries that hold given samples; samples of iterable streams cannot be found.

        Args:
            source: Name of the data set or stream.
            indices: Indices of the samples.

        Raises:
            ValueError: If there is no such source.
            TypeError: If indices are not a list of integers.
        """
        names = self.sources.names
        if source not in names:
            raise InvalidValueError(option="source", expected=f"one of {list(names)}", found=source)
        wanted = addresses(names.index(source), as_whole_numbers("indices", indices))
        found: list[int] = self._entries["number"][np.isin(self._entries["address"], wanted)].tolist()
        return found

    # ---- A stream of the mixture ----

    def new_cursor(self, key: int) -> BufferCursor:
        """Returns the cursor of the stream; see `mixer.mixture.stream.GrowingDataset`."""
        if self._derives_key and not self.num_offered:
            self.key = None  # the run may begin with another seed than it was made with
        self.start_if_new(key)
        return BufferCursor(self)

    def load(self, folder: Path | str) -> None:
        """Loads a saved buffer in place of the current content; see `Memory.load`."""
        super().load(folder)
        if self.feeding is not None:
            self.feeding.find_sources()

    def second_draw(self) -> SecondDraw:
        """Returns a second stream that draws from the buffer independently, as `DERPlusPlus` needs."""
        return SecondDraw(self)

    def follow(
        self, name: str, streams: Sequence[Stream], planner: Callable[[], Planner]
    ) -> Callable[[StepPlan], None]:
        """Returns the function that fills the buffer in your own training loop; see `GrowingDataset`.

        The plan alone tells which samples to offer: no collective is needed.

        Raises:
            ValueError: If the buffer needs samples, losses, or labels without a column.
        """
        feeding = BufferFeeding(self, name, streams)
        no_runs: Any = SimpleNamespace()
        feeding.attach(RunContext(streams, 0, 1, True, torch.device("cpu"), RankSync(1), planner, no_runs))
        if self.is_online and (feeding.asks or self.storage.keeps_contents):
            what = f"selection={self.selection.name} goes by what a batch shows" if feeding.asks else f"{self.storage}"
            text = (
                f"Stream {name!r}: {what}, which is not available in your own training loop. Use a selection that "
                "needs no data, or only a column of labels, with storage='references'; or set is_online=False and call "
                "remember(...)."
            )
            raise InvalidValueError(text, option="selection" if feeding.asks else "storage", stream=name)

        def take_in(plan: StepPlan) -> None:
            batch = StepBatch(plan, ())
            feeding.begin_step(torch.nn.Identity(), batch)
            feeding.close(batch)

        return take_in

    def stand_in(self) -> "ReplayBuffer":
        """Returns a buffer of the same size and streams that only stores references, for `mixer simulate`."""
        options: dict[str, Any] = {"is_online": self.is_online, "keeps_repeats": self.keeps_repeats}
        return ReplayBuffer(self.capacity, streams=self.stream_names, **options)

    def empty_copy(self, capacity: int, seed: int) -> "ReplayBuffer":
        """Returns an empty buffer with the same options that only `remember` fills.

        Args:
            capacity: Largest number of its entries.
            seed: Its random key.

        Raises:
            ValueError: If its contents are on disk, in a folder that two buffers cannot share.
        """
        if self.storage.working_folder is not None:
            raise InvalidValueError.about("storage", "Copies of a buffer cannot share a folder; use InMemory().")
        options: dict[str, Any] = {"label_column": self.label_column, "keeps_repeats": self.keeps_repeats}
        rules = self.selection, self.storage, self.retrieval
        return ReplayBuffer(capacity, *rules, **options, seed=seed, is_online=False)

    def as_method(self, name: str, streams: Sequence[Stream]) -> Method:
        """Returns the method that fills the buffer during a run; see `mixer.mixture.stream.GrowingDataset`."""
        self.feeding = BufferFeeding(self, name, streams)
        return self.feeding


def _checked_numbers(source: str, dataset: DataSet, indices: Iterable[int] | None) -> Int64Array:
    """Returns the numbers of the samples to remember, once the arguments of `remember` are checked."""
    if not isinstance(source, str):
        raise InvalidTypeError(option="source", expected="the name of the data set, such as 'old'", found=source)
    if not (hasattr(dataset, "__len__") and hasattr(dataset, "__getitem__")):
        raise InvalidTypeError(option="dataset", expected="a data set with __len__ and __getitem__", found=dataset)
    picked = np.arange(len(dataset)) if indices is None else as_whole_numbers("indices", indices)
    if len(picked) and not (picked.min() >= 0 and picked.max() < len(dataset)):
        worst = picked.min() if picked.min() < 0 else picked.max()
        raise InvalidValueError(option="indices", expected=f"in [0, {len(dataset)})", found=int(worst))
    return picked
