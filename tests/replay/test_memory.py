"""Entries of a buffer, what is drawn of them, and what it holds of rows that come again."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from mixer import Stream
from mixer.mixture.planner import Planner
from replay import ReplayBuffer
from replay.memory.entries import Entries
from replay.selection import Ring
from tests.refusals import refused
from tests.replay.buffers import STORAGES, InTurn, letters
from tests.replay.selection.offering import BY_TASK, MAKERS
from tests.replay.test_buffer import contents, remember

COLUMNS = ("address", "row", "number", "task", "label")
CAPACITY = 5_000


def put(entries: Entries, slots: Any, start: int) -> None:
    values = {name: start * 7 + place + np.arange(len(slots)) for place, name in enumerate(COLUMNS)}
    entries.put(np.asarray(slots, dtype=np.int64), **{**values, "task": start})


def table(entries: Entries) -> list[tuple[int, ...]]:
    return list(zip(*(entries[name].tolist() for name in COLUMNS), strict=True))


NUMBERS = st.integers(0, CAPACITY)
CALLS = st.one_of(
    st.tuples(st.just("add"), st.integers(0, 2_000)),
    st.tuples(st.just("replace"), st.lists(NUMBERS, unique=True, max_size=5)),
    st.tuples(st.sampled_from(["remove", "reload"]), NUMBERS),
)


def call(entries: Entries, kind: str, argument: Any, start: int) -> Entries:
    if kind == "add":
        put(entries, np.arange(entries.size, min(CAPACITY, entries.size + argument)), start)
    elif kind == "replace":
        put(entries, [slot for slot in argument if slot < entries.size], start)
    elif kind == "remove" and entries.size:
        entries.remove(argument % entries.size)
    elif kind == "reload":
        state = entries.state_dict()
        if argument % 2:
            entries = Entries(CAPACITY)
        entries.load_state_dict(state)
    return entries


@given(st.lists(CALLS, max_size=15))
def test_entries_are_what_a_list_would_be(calls):
    entries, model = Entries(CAPACITY), []
    for start, (kind, argument) in enumerate(calls):
        entries = call(entries, kind, argument, start)
        if kind == "remove" and model:
            model[argument % len(model)] = model[-1]
            model.pop()
        if kind in ("remove", "reload"):
            assert table(entries) == model
        model = table(entries)


DATA = letters(50)
both = pytest.mark.parametrize("retrieval", ["Uniform", InTurn()])


def buffer_of(size: int, retrieval: Any = "Uniform", storage: str = "references") -> ReplayBuffer:
    buffer = ReplayBuffer(12, storage=storage, retrieval=retrieval, seed=4)
    buffer.remember("a", DATA, range(size))
    return buffer


@both
@settings(max_examples=25)
@given(counts=st.lists(st.integers(0, 12), max_size=9), data=st.data())
def test_draws_give_no_entry_twice_and_stay_as_they_are(retrieval: Any, counts: list[int], data: Any) -> None:
    buffer, position = buffer_of(7, retrieval, storage="memory"), 0
    cursor = buffer.new_cursor(0)
    for count in counts:
        count = min(count, cursor.available)
        held = buffer._entries["row"].tolist()
        start = cursor.advance(count)
        assert start == position
        position += count
        assert buffer.num_drawn == position
        positions = np.arange(start, position)
        found = cursor.references(positions).tolist()
        assert len(set(found)) == count
        assert set(found) <= set(held)
        assert [held[slot] for slot in cursor.slots(positions).tolist()] == found
        buffer.remember("a", DATA, range(data.draw(st.integers(0, 30))))
        part = sorted(data.draw(st.sets(st.sampled_from(range(count)))) if count else [])
        assert cursor.references(positions[part]).tolist() == [found[place] for place in part]
        buffer.forget(buffer.entries["number"][: data.draw(st.integers(0, 2))].tolist())


@both
@settings(max_examples=25)
@given(counts=st.lists(st.integers(0, 7), min_size=1, max_size=6))
def test_where_the_buffer_stays_as_it_is_predictions_are_what_is_drawn(retrieval: Any, counts: list[int]) -> None:
    buffer = buffer_of(7, retrieval)
    cursor = buffer.new_cursor(0)
    cursor.advance(3)
    for ahead in (cursor.lookahead_copy(), cursor.lookahead_copy()):  # the second forecast differs
        spans = []
        for count in counts:
            start = ahead.advance(count)
            spans.append(range(start, start + count))
        predicted = [cursor.references(span).tolist() for span in spans]
        assert [ahead.references(span).tolist() for span in spans] == predicted
        assert cursor.references(range(3)).tolist() == cursor._last[2].tolist(), "nothing was drawn yet"
    for span, expected in zip(spans, predicted, strict=True):
        assert cursor.advance(len(span)) == span.start
        assert cursor.references(span).tolist() == expected


def test_entries_that_were_forgotten_are_missed_in_draws_and_not_in_predictions() -> None:
    buffer = buffer_of(5)
    cursor = buffer.new_cursor(0)
    cursor.advance(2)
    start = cursor.lookahead_copy().advance(4)
    buffer.forget(buffer.entries["number"].tolist())
    assert cursor.references(range(start, start + 4)).shape == (4,)
    with refused("buffer"):
        cursor.slots(np.arange(2))
    assert (cursor.available, cursor.advance(0), buffer.num_drawn) == (0, 2, 2)


def test_a_drawer_is_the_buffers_own_state() -> None:
    buffer = buffer_of(9)
    first = buffer.new_cursor(0)
    first.advance(5)
    second = buffer.new_cursor(1)  # another run of the same buffer
    assert second.advance(0) == 5
    second.load_state_dict(first.state_dict())
    for state, option, found in (
        ({"position": 4, "memory": True}, "buffer", (5, 9)),
        ({"position": 4, "length": 9, "key": 1}, "dataset", None),
    ):
        with refused(option, found=found):
            second.load_state_dict(state)
        second.load_state_dict(state, allow_inexact=True)
    assert second.advance(1) == 5


@settings(max_examples=40)
@given(total=st.integers(1, 20), ratio=st.sampled_from([0.0, 0.1, 0.5]), additional=st.booleans())
def test_a_growing_memory_is_drawn_within_a_sample_of_its_share(total: int, ratio: float, additional: bool) -> None:
    buffer = ReplayBuffer(30, seed=total)
    planner = Planner([Stream("a", DATA), Stream("memory", buffer)], total)
    weights = np.array([1.0, 0.0]) if additional else np.array([1 - ratio, ratio])
    on_top = np.array([0.0, ratio]) if additional else None
    owed = 0.0
    for step in range(12):
        shares, available = planner.shares(weights, 0.0)
        size = len(buffer)
        counts, starts = planner.draw(shares, available, total, step, on_top)
        assert counts[0] + (0 if additional else counts[1]) == total
        assert counts[1] <= size
        owed += ratio * total if size else 0.0
        if counts[1] == size:
            owed = float(counts[1])  # what it could not give is not made up for
        owed -= counts[1]
        if size >= total:
            assert -1.0 < owed < 1.0 + 1e-9
        assert (starts[1] + counts[1]) == buffer.num_drawn
        buffer.remember("a", DATA, range(step * 3, step * 3 + 3))


@pytest.mark.parametrize("storage", ["references", "memory"])
def test_a_cleared_buffer_keeps_the_same_samples_as_a_new_one(storage: str) -> None:
    new, used = (ReplayBuffer(3, storage=storage, seed=4) for _ in range(2))
    used.remember("numbers", list("12345"))
    used.clear()
    assert len(used) == 0
    for buffer in (new, used):
        buffer.remember("letters", list("abcdefgh"))
    assert [used[slot] for slot in range(3)] == [new[slot] for slot in range(3)]


ALL: dict[str, Callable[[], Any]] = {**MAKERS, **BY_TASK}


def epochs_of(num_rows: int, num_epochs: int, seed: int = 0) -> list[int]:
    random = np.random.default_rng(seed)
    return [int(row) for _ in range(num_epochs) for row in random.permutation(num_rows)]


KINDS = [*((name, "references") for name in ALL), ("Ring", "disk"), ("Reservoir", "memory")]


@pytest.mark.parametrize(("name", "storage"), KINDS)
def test_a_row_is_held_once_and_a_small_task_leaves_its_room(name: str, storage: str, tmp_path: Path) -> None:
    is_online = name not in BY_TASK
    buffer = ReplayBuffer(100, ALL[name](), STORAGES[storage](tmp_path / "rows"), is_online=is_online, seed=1)
    for source, data in (("a", letters(12)), ("bb", letters(400, "t"))):
        order = epochs_of(len(data), 3)
        for start in range(0, len(order), 100):
            remember(buffer, source, data, order[start : start + 100])
            assert len(set(contents(buffer))) == len(buffer) == buffer.selection.size
        if source == "a":
            assert sorted(contents(buffer)) == sorted(row["text"] for row in data)
    assert len(buffer) == 100
    if name == "Ring":  # four classes of each task: those of the small one are below their share
        assert buffer.num_samples_by_source == {"a": 12, "bb": 88}


@pytest.mark.parametrize("cut", [1, 7, 1_000])
def test_a_ring_holds_the_rows_that_came_last(cut: int) -> None:
    order, data = [*epochs_of(30, 4, 2), 3, 3, 5, 3], letters(30)
    buffer = ReplayBuffer(9, Ring(by="task"), seed=0)
    for start in range(0, len(order), cut):
        buffer.remember("a", data, order[start : start + cut])
        newest = list(dict.fromkeys(reversed(order[: start + cut])))[:9]
        assert sorted(contents(buffer)) == sorted(f"s{row}" for row in newest)


def test_repeats_are_kept_where_they_are_asked_for(tmp_path: Path) -> None:
    buffer = ReplayBuffer(30, seed=0, keeps_repeats=True)
    buffer.remember("a", letters(6), epochs_of(6, 4))
    assert Counter(contents(buffer)) == {f"s{row}": 4 for row in range(6)}
    buffer.save(tmp_path)
    with refused("keeps_repeats", found=False):
        ReplayBuffer(30).load(tmp_path)


def test_outputs_kept_of_a_row_are_those_of_the_last_time() -> None:
    buffer, data = ReplayBuffer(4, storage="memory", seed=0), letters(10)
    for time in range(3):
        logits = [np.array([time, row]) for row in range(10)]
        buffer.remember("a", data, range(10), payloads={"logits": logits})
        rows = [int(text[1:]) for text in contents(buffer)]
        assert [found.tolist() for found in buffer.payloads(np.arange(4), "logits")] == [[time, row] for row in rows]
    assert len(buffer.rows._rows) == 4  # type: ignore[attr-defined]


def test_entries_are_found_as_a_dict_would() -> None:
    random, entries, model = np.random.default_rng(0), Entries(5_000), {}
    for _ in range(15):
        held = set(model.values())
        new = [int(row) for row in random.choice(20_000, 300, replace=False) if row not in held]
        slots = [slot for slot in random.choice(max(entries.size, 1), 100).tolist() if slot < entries.size]
        slots = [*dict.fromkeys(slots), *range(entries.size, min(5_000, entries.size + 120))][: len(new)]
        entries.put(np.array(slots), address=np.array(new[: len(slots)]), row=0, number=0, task=0, label=0)
        model.update(zip(slots, new, strict=False))
        for slot in random.choice(entries.size, 3, replace=False).tolist():
            if slot < entries.size:
                entries.remove(slot)
                last = model.pop(entries.size)
                model |= {slot: last} if slot < entries.size else {}
        wanted = np.arange(-1, 20_000)
        by_address = {address: slot for slot, address in model.items()}
        expected = np.array([by_address.get(address, -1) for address in wanted.tolist()])
        np.testing.assert_array_equal(entries.find(wanted), expected)
