"""What a buffer holds of rows that come again, in a second epoch or by a second call."""

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from replay import ReplayBuffer
from replay.memory.entries import Entries
from replay.selection import Ring
from tests.refusals import refused
from tests.replay.buffers import STORAGES, letters
from tests.replay.selection.offering import BY_TASK, MAKERS
from tests.replay.test_buffer import contents, remember

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
