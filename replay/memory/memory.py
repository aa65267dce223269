"""Entries of a buffer and their state: the part of a buffer that does not depend on a run."""

import copy
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from inspect import signature
from operator import index
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.utils.arrays import BoolArray, Int64Array
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import digests_of, find_damaged, other_version
from mixer.utils.validation import refusing_damage
from replay.memory.entries import Entries
from replay.memory.reading import ColumnReferenceReader, ReferenceReader, RowReader
from replay.memory.seen_rows import SeenRows
from replay.retrieval import Retrieval
from replay.selection import Offers, Selection
from replay.selection.base import COLUMNS, checked_choice
from replay.shared.arguments import as_whole_numbers
from replay.storage import Row, Rows, Storage
from replay.storage.saved_state import read_state, write_state
from replay.storage.sources import Sources, split

FORMAT_VERSION = 3
_COUNTERS = ("num_offered", "num_considered", "num_kept", "num_drawn", "num_gathered_bytes")


class Memory:
    """Entries chosen by a selection among the offered samples; the same on every rank.

    Args:
        capacity: Largest number of entries.
        selection: Which samples to keep.
        storage: Where to keep them.
        retrieval: Which entries to replay.

    Raises:
        ValueError: If the capacity is below the minimum of the selection.
    """

    def __init__(self, capacity: int, selection: Selection, storage: Storage, retrieval: Retrieval):
        self.capacity = capacity
        self.selection, self.storage, self.retrieval = selection, storage, retrieval
        self.sources = Sources()
        self.num_offered = self.num_kept = self.num_drawn = self.num_gathered_bytes = 0
        self.num_considered = 0  # by the selection: the samples offered without those that only come again
        # Whether this process writes the files that other ranks of its machine read; a run says so too.
        self.is_writer = int(os.environ.get("LOCAL_RANK", "0")) <= 0
        self.key: int | None = None
        self.is_online, self.keeps_repeats = True, False
        self.label_column: str | None = None
        self.stream_names: tuple[str, ...] | None = None
        self._entries = Entries(capacity)
        self._rows: Rows | None = None
        self._seen = SeenRows()  # rows that were offered, if the selection counts rows
        self._forgotten: Int64Array = np.zeros(0, dtype=np.int64)  # addresses of samples that must not come back
        selection.start(capacity, 0)  # what does not fit shows at once

    def __len__(self) -> int:
        return self._entries.size

    @property
    def entries(self) -> Mapping[str, NDArray[Any]]:
        """Columns of the entries by slot: `number` (unique, permanent), `task`, `label` (-1: unknown)."""
        return {name: self._entries[name] for name in ("number", "task", "label")}

    @property
    def num_samples_by_source(self) -> dict[str, int]:
        """Number of entries from each stream or data set."""
        counts = np.bincount(self._entries["task"], minlength=len(self.sources.names))
        return dict(zip(self.sources.names, counts.tolist(), strict=True))

    @property
    def rows(self) -> Rows:
        """Stored contents and payloads of the entries."""
        if self._rows is None:
            self._rows = self.storage.open(self.is_writer)
        return self._rows

    def start_if_new(self, key: int) -> None:
        """Starts the buffer with a random key, unless it has one."""
        if self.key is None:
            self.key = key
            self.selection.start(self.capacity, key)
            self.retrieval.start(self.capacity, key)

    def addresses(self, slots: Int64Array) -> Int64Array:
        """Returns the addresses of the samples in some slots; see `reader`."""
        found: Int64Array = self._entries["row" if self.storage.keeps_contents else "address"][slots]
        return found

    def origins(self, slots: Int64Array) -> tuple[list[str], Int64Array]:
        """Returns where the samples in some slots came from, whatever the storage.

        Args:
            slots: int64 `[count]`.

        Returns:
            Names of the data sets, and int64 `[count]`: indices in them; -1 where they have none.
        """
        where, names = self._entries["address"][slots], self.sources.names
        sources = [names[task] for task in self._entries["task"][slots].tolist()]
        return sources, np.where(where < 0, where, split(where)[1])

    def numbers(self, slots: Int64Array) -> Int64Array:
        """Returns the numbers of the entries in some slots; -1 for an empty slot."""
        numbers = np.full(len(slots), -1, dtype=np.int64)
        are_taken = slots < len(self)
        numbers[are_taken] = self._entries["number"][slots[are_taken]]
        return numbers

    def read_labels(self, where: Int64Array) -> Int64Array | None:
        """Reads classes from the column of labels.

        Args:
            where: int64 `[count]`: addresses of the samples.

        Returns:
            int64 `[count]`, or `None` if a data set has no label column that can be read on its own.

        Raises:
            ValueError: If `label_column` names a column that does not exist.
        """
        labels = self.sources.labels(where, self.label_column)
        if labels is None and self.label_column is not None:
            expected = f"a column or attribute of whole numbers in each of {list(self.sources.names)}"
            hint = "Leave it out to take the labels that are trained on, or give labels= to remember(...)."
            raise InvalidValueError(option="label_column", expected=expected, found=self.label_column, hint=hint)
        return labels

    def reader(self, datasets: Mapping[str, Any]) -> Any:
        """Returns a reader of samples by address; see `mixer.mixture.stream.GrowingDataset`."""
        if self.storage.keeps_contents:
            return RowReader(lambda: self.rows)
        kind = ColumnReferenceReader if self.sources.has_columns else ReferenceReader
        return kind(lambda: self.sources, datasets)

    def payloads(self, slots: Int64Array, name: str) -> list[NDArray[Any]]:
        """Returns a payload of some entries, one array per entry.

        Args:
            slots: int64 `[count]`: their slots.
            name: Name of the payload, such as `"logits"`.

        Raises:
            ValueError: If an entry has no such payload.
        """
        numbers = self._entries["row"][slots]
        rows = [Row()] if (numbers < 0).any() else self.rows.read(numbers)
        if any(name not in row.payload for row in rows):
            text = (
                f"An entry of the buffer came in without its {name!r}: give payloads={{{name!r}: ...}} to "
                "remember(...), or begin with an empty buffer."
            )
            raise InvalidValueError(text, option="payloads", expected=name)
        return [row.payload[name] for row in rows]

    # ---- Taking in and letting go ----

    def offer(
        self,
        offers: Offers,
        addresses_of: Callable[[Int64Array], Int64Array],
        make_rows: Callable[[Int64Array], list[Row]] | None = None,
        renews_rows: bool = False,
    ) -> Int64Array:
        """Offers samples, and stores those that the selection keeps; a sample that is held is not stored twice.

        Args:
            offers: The samples.
            addresses_of: Returns the addresses of some of them, by their ascending numbers in `offers`.
            make_rows: Likewise returns the rows to store; `None` to store none.
            renews_rows: Whether a new row replaces that of a sample that is held, because it depends on the model.

        Returns:
            int64 `[num_kept]`: the numbers in `offers` of the new entries, ascending.

        Raises:
            ValueError: If the selection needs a column that `offers` lacks.
        """
        if not offers.count:
            return np.zeros(0, dtype=np.int64)
        self._check_columns(offers)
        where = addresses_of(np.arange(offers.count))
        are_offered, held = self._look_up(where)
        numbers, slots = _last_of_each(self._choose(offers, are_offered, held))
        renewed = np.flatnonzero((held >= 0) & ~np.isin(held, slots)) if renews_rows else numbers[:0]
        rows = self._new_rows(numbers, slots, renewed, held[renewed], make_rows)
        self.num_offered += offers.count
        self.num_considered += int(are_offered.sum())
        if self.selection.counts_rows:
            self._seen.add(where)
        if not len(numbers):
            return numbers
        self._drop_rows(slots[slots < len(self)])
        self._entries.put(
            slots,
            address=where[numbers],
            row=rows,
            number=np.arange(self.num_kept, self.num_kept + len(numbers)),
            task=0 if offers.tasks is None else offers.tasks[numbers],
            label=-1 if offers.labels is None else offers.labels[numbers],
        )
        self.num_kept += len(numbers)
        self.retrieval.placed(slots)
        return numbers

    def _new_rows(
        self,
        numbers: Int64Array,
        slots: Int64Array,
        renewed: Int64Array,
        renewed_slots: Int64Array,
        make_rows: Callable[[Int64Array], list[Row]] | None,
    ) -> Int64Array:
        """Stores rows of new entries, whose numbers it returns, and in place of those of some that are held."""
        if make_rows is None or not len(numbers) + len(renewed):
            return np.full(len(numbers), -1, dtype=np.int64)
        stored = np.union1d(numbers, renewed)
        try:
            rows = self.rows.append(make_rows(stored))
        except BaseException:
            self._free_slots(slots)
            raise
        self._drop_rows(renewed_slots)
        self._entries.set_rows(renewed_slots, rows[np.searchsorted(stored, renewed)])
        return rows[np.searchsorted(stored, numbers)]

    def _check_columns(self, offers: Offers) -> None:
        """Refuses samples that lack a column that the selection needs."""
        missing = sorted(need for need in self.selection.needs if getattr(offers, COLUMNS[need]) is None)
        if missing:
            given = ", ".join(f"{COLUMNS[need]}=..." for need in missing)
            column = ", or name the label_column of ReplayBuffer" if "label" in missing else ""
            text = f"{self.selection.name} needs the {missing} of samples. Give remember(..., {given}){column}."
            raise InvalidValueError.about("selection", text, found=missing)

    def _look_up(self, where: Int64Array) -> tuple[BoolArray, Int64Array]:
        """Returns which samples are offered to the selection, and the slots of those that are held, -1 for others.

        A row without an address, of an iterable stream, cannot be recognised: each is another one.
        """
        are_offered = ~np.isin(where, self._forgotten) if len(self._forgotten) else np.ones(len(where), dtype=bool)
        if self.keeps_repeats:
            return are_offered, np.full(len(where), -1, dtype=np.int64)
        are_offered &= _are_single(where, self.selection.follows_repeats) | (where < 0)
        held = np.where(are_offered, self._entries.find(where), -1)
        if not self.selection.follows_repeats:
            are_offered &= held < 0
        if self.selection.counts_rows and len(self) == self.capacity:  # room that was made is for all
            are_offered &= ~self._seen.has(where)
        return are_offered, held

    def _choose(self, offers: Offers, are_offered: BoolArray, held: Int64Array) -> Int64Array:
        slots = np.full(offers.count, -1, dtype=np.int64)
        if are_offered.any():
            offered = replace(offers, first=self.num_considered, held=held if self.selection.follows_repeats else None)
            slots[are_offered] = checked_choice(self.selection, offered.part(are_offered), len(self), self.capacity)
        return slots

    def _free_slots(self, slots: Int64Array) -> None:
        """Frees slots whose new rows could not be stored, with the entries that occupied them."""
        size = len(self)
        for slot in np.sort(slots)[::-1].tolist():
            if slot >= size:
                self.selection.remove(slot)
        self._drop_rows(slots[slots < size])
        self._remove(np.sort(slots[slots < size]))

    def _remove(self, slots: Int64Array) -> None:
        for slot in slots[::-1].tolist():  # from the end: what comes in a freed slot's place is none of them
            self.retrieval.removed(slot, len(self) - 1)
            self.selection.remove(slot)
            self._entries.remove(slot)

    def _drop_rows(self, slots: Int64Array) -> None:
        rows = self._entries["row"][slots]
        self.rows.drop(rows[rows >= 0])

    def forget(self, numbers: Iterable[int]) -> int:
        """Removes entries permanently, with all stored data, also on disk.

        Their samples are not accepted again, except for rows of iterable streams, which cannot be recognised. All ranks
        must make the same call, between steps. Earlier checkpoints still hold the data: delete those as well.

        Args:
            numbers: Numbers of the entries (`entries["number"]`); see `find`. Unknown numbers are ignored.

        Returns:
            How many entries were removed.
        """
        slots = np.flatnonzero(np.isin(self._entries["number"], as_whole_numbers("numbers", numbers)))
        rows, where = self._entries["row"][slots], self._entries["address"][slots]
        self.rows.erase(rows[rows >= 0])
        self._forgotten = np.union1d(self._forgotten, where[where >= 0])
        self._remove(slots)
        return len(slots)

    def clear(self) -> None:
        """Removes all entries, whose samples may come back; all ranks must make the same call, between runs."""
        slots = np.arange(len(self))
        self._drop_rows(slots)
        for slot in slots[::-1].tolist():
            self._entries.remove(slot)
        self.num_offered, self.num_considered, self._seen = 0, 0, SeenRows()
        self.selection.start(self.capacity, self.key or 0)
        self.retrieval.start(self.capacity, self.key or 0)

    # ---- State ----

    @property
    def description(self) -> dict[str, Any]:
        """Options that a saved buffer must share with the one that loads it, by name."""
        return {
            "capacity": self.capacity,
            "selection": self.selection.name,
            "selection_options": _options(self.selection),
            "retrieval": self.retrieval.name,
            "retrieval_options": _options(self.retrieval),
            "keeps_contents": self.storage.keeps_contents,
            "keeps_repeats": self.keeps_repeats,
        }

    def save(self, folder: Path | str) -> None:
        """Writes the buffer into a new folder, without the data sets it refers to; one rank has to call it."""
        folder = Path(folder)
        (folder / "buffer.json").unlink(missing_ok=True)  # new arrays are never taken for those of an old state
        self.rows.save(folder / "rows")
        state = {
            "format": FORMAT_VERSION,
            **self.description,
            "key": self.key,
            **{name: getattr(self, name) for name in _COUNTERS},
            "sources": self.sources.state_dict(),
            "forgotten": self._forgotten.tolist(),
            "digests": digests_of(folder, [f"rows/{path.name}" for path in sorted((folder / "rows").iterdir())]),
        }
        arrays = {
            "entries": self._entries.state_dict(),
            "selection": self.selection.state_dict(),
            "retrieval": {} if self.key is None else self.retrieval.state_dict(),
            "seen": self._seen.state_dict(),
        }
        write_state(folder / "buffer", state, arrays)

    def load(self, folder: Path | str) -> None:
        """Loads a saved buffer in place of the current content; all ranks have to call it.

        Args:
            folder: The folder that `save` wrote.

        Raises:
            ValueError: If a file is missing or torn, the capacity, selection, retrieval or kind of storage differs, or
                a referenced data set has changed. The buffer is unchanged then.
        """
        folder = Path(folder)
        state, arrays = read_state(folder / "buffer")
        if state["format"] != FORMAT_VERSION:
            text = other_version("the buffer", state["format"], FORMAT_VERSION)
            raise InvalidValueError(text, option="format", found=state["format"])
        for name, own in self.description.items():
            if state.get(name) != own:
                saved = state.get(name)
                text = f"the buffer was saved with {name}={saved!r} and has {name}={own!r} now"
                raise InvalidValueError(text, option=name, expected=repr(saved), found=own)
        with refusing_damage(f"{folder / 'buffer.json'}"):
            damaged = find_damaged(folder, state.get("digests", {}))
            if damaged is not None:
                text = "is damaged: it is not what was written. Take an earlier checkpoint."
                raise InvalidValueError.about(str(folder / damaged), text)
            self._apply_state(state, arrays, folder)

    def _apply_state(self, state: Mapping[str, Any], arrays: Mapping[str, Any], folder: Path) -> None:
        """Loads a state that was read; an error leaves the buffer as it was."""
        counters = {name: index(state[name]) for name in _COUNTERS}  # no text
        key = None if state["key"] is None else index(state["key"])
        forgotten = np.array([index(number) for number in state["forgotten"]], dtype=np.int64)
        sources, entries = self.sources.replaced({}), Entries(self.capacity)
        sources.load_state_dict(state["sources"], is_read=not self.storage.keeps_contents)
        entries.load_state_dict(arrays["entries"])
        selection, retrieval = copy.copy(self.selection), copy.copy(self.retrieval)  # `start` replaces all their state
        for name, rule in (("selection", selection), ("retrieval", retrieval))[: 1 if key is None else 2]:
            rule.start(self.capacity, key or 0)
            try:
                rule.load_state_dict(arrays[name])
            except ValueError as error:
                raise InvalidValueError.about(str(folder / "buffer.json"), f"is damaged ({name}: {error})") from None
        if selection.size != entries.size:
            text = f"the selection knows {selection.size} entries, and there are {entries.size}"
            raise InvalidValueError(text, option="selection", found=selection.size)
        seen, own = SeenRows(arrays["seen"]), entries["row"]
        self.rows.load(folder / "rows", own if self.storage.keeps_contents else own[own >= 0])
        self._seen, self.selection, self.retrieval = seen, selection, retrieval
        self.sources, self._entries, self.key, self._forgotten = sources, entries, key, forgotten
        vars(self).update(counters)


def _options(rule: Selection | Retrieval) -> dict[str, Any]:
    """Returns the arguments of a rule, as JSON-compatible data."""
    plain = (bool, int, float, str, tuple, type(None))
    options = {name for kind in type(rule).__mro__ for name in signature(kind).parameters}
    values = {name: value for name, value in vars(rule).items() if name in options and isinstance(value, plain)}
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}


def _are_single(where: Int64Array, last: bool) -> BoolArray:
    """Marks one of equal addresses, the last or the first: bool `[count]`."""
    step = -1 if last else 1
    are_single = np.zeros(len(where), dtype=bool)
    are_single[np.unique(where[::step], return_index=True)[1]] = True
    return are_single[::step]


def _last_of_each(slots: Int64Array) -> tuple[Int64Array, Int64Array]:
    """Returns the last sample that took each slot, and the slot; samples ascending."""
    numbers = np.flatnonzero(slots >= 0)
    occupied, from_end = np.unique(slots[numbers][::-1], return_index=True)
    order = np.argsort(-from_end)
    return numbers[len(numbers) - 1 - from_end[order]], occupied[order]
