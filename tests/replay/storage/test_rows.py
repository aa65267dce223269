from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from hypothesis import settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from replay.storage import DiskRows, MemoryRows, OnDisk, Row, Rows, as_storage
from replay.storage.codec import encode
from replay.storage.row_file import SCHEMA, open_rows, write_rows
from tests.refusals import refused


def make(kind: str, folder: Path) -> Rows:
    return MemoryRows() if kind == "memory" else DiskRows(folder, rows_per_segment=4)


def row(number: int, seed: int = 0) -> Row:
    mark = f"<{seed}:{number}>"  # in no other row
    return Row({"text": mark * (1 + number % 3), "x": torch.full((3,), number)}, {"logits": np.full(2, seed)})


def same(left: Row, right: Row) -> bool:
    first, second = ([*row.sample.values(), row.payload["logits"]] for row in (left, right))
    return first[0] == second[0] and all(np.array_equal(*pair) for pair in zip(first[1:], second[1:], strict=True))


class AgainstDict(RuleBasedStateMachine):
    kind = "disk"

    @initialize()
    def start(self):
        self.place = TemporaryDirectory()
        self.root = Path(self.place.name)
        self.num_folders, self.seed = 1, 0
        self.rows = make(self.kind, self.root / "0")
        self.model: dict[int, Row] = {}
        self.next_number = 0
        self.saved: list[tuple[Path, dict[int, Row], int]] = []

    def numbers(self, data) -> list[int]:
        return data.draw(st.lists(st.integers(0, self.next_number - 1), max_size=8)) if self.next_number else []

    def forget(self, numbers):
        for number in numbers:
            self.model.pop(number, None)

    @rule(count=st.integers(0, 9))
    def append(self, count):
        new = [row(self.next_number + index, self.seed) for index in range(count)]
        expected = list(range(self.next_number, self.next_number + count))
        assert self.rows.append(new).tolist() == expected
        self.model.update(zip(expected, new, strict=True))
        self.next_number += count

    @rule(data=st.data(), all_but=st.booleans())
    def drop(self, data, all_but):
        drawn = self.numbers(data)
        numbers = [number for number in range(self.next_number) if number not in drawn[:2]] if all_but else drawn
        self.rows.drop(np.array(numbers, dtype=np.int64))
        self.forget(numbers)

    @rule(data=st.data())
    def erase(self, data):
        numbers = self.numbers(data)
        self.rows.erase(np.array(numbers, dtype=np.int64))
        self.forget(numbers)
        folder = self.root / str(self.num_folders - 1)
        content = b"".join(path.read_bytes() for path in folder.glob("*"))
        gone = [f"<{seed}:{number}>".encode() for number in numbers for seed in range(self.seed + 1)]
        assert not any(mark in content for mark in gone)

    @rule()
    def save(self):
        folder = self.root / f"checkpoint-{len(self.saved)}"
        self.rows.save(folder)
        self.saved.append((folder, dict(self.model), self.next_number))

    @precondition(lambda self: self.saved)
    @rule(data=st.data(), is_new=st.booleans())
    def load(self, data, is_new):
        folder, model, self.next_number = data.draw(st.sampled_from(self.saved))
        if is_new:
            self.rows = make(self.kind, self.root / str(self.num_folders))
            self.num_folders += 1
        self.rows.load(folder, model)
        self.model = dict(model)
        self.seed += 1  # rows that are added now have other contents than those that were added then

    @invariant()
    def holds_what_the_dict_holds(self):
        assert self.rows.next_number == self.next_number
        numbers = np.array(sorted(self.model, reverse=True), dtype=np.int64)
        found = reversed(self.rows.read(numbers))
        assert all(same(*pair) for pair in zip(found, self.model.values(), strict=True))
        gone = sorted(set(range(self.next_number)) - set(self.model))[:3]
        for number in [*gone, self.next_number, -1]:
            with pytest.raises(KeyError):
                self.rows.read(np.array([number]))

    def teardown(self):
        if hasattr(self, "place"):
            self.place.cleanup()


class MemoryAgainstDict(AgainstDict):
    kind = "memory"


TestDisk = AgainstDict.TestCase
TestMemory = MemoryAgainstDict.TestCase
TestDisk.settings = settings(max_examples=25, stateful_step_count=20)
TestMemory.settings = settings(max_examples=8, stateful_step_count=15)


def test_a_choice_is_taken_as_it_is_and_another_is_refused(tmp_path):
    choice = OnDisk(str(tmp_path / "rows"), rows_per_segment=2)
    assert as_storage(choice) is choice
    choice.open(is_writer=False)
    assert not (tmp_path / "rows").exists()
    with refused("rows_per_segment", found=0):
        OnDisk("rows", rows_per_segment=0)


@pytest.mark.parametrize(
    ("batches", "note"),
    [
        *(([[0]], note) for note in ("1.5", "x", "", "9" * 5_000, "²")),
        *(([numbers], "9") for numbers in ([1, 0], [0, 0], [0, None])),
        ([[1], [0]], "9"),
    ],
)
def test_wrong_numbers_and_orders_are_refused(tmp_path: Path, batches: Sequence[Any], note: str) -> None:
    schema = SCHEMA.with_metadata({"next_number": note})
    with pa.OSFile(str(tmp_path / "rows"), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for numbers in batches:
            lists = [numbers, ["[]"] * len(numbers), [[]] * len(numbers), [0] * len(numbers)]
            columns = [pa.array(values, kind) for values, kind in zip(lists, SCHEMA.types, strict=True)]
            writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
    with refused(str(tmp_path / "rows")):
        open_rows(tmp_path / "rows")


def test_rows_beyond_the_next_number_are_damage(tmp_path):
    write_rows(tmp_path / "rows.arrow", [(number, encode(Row())) for number in range(2)], next_number=1)
    with refused(str(tmp_path / "rows.arrow")):
        MemoryRows().load(tmp_path, [0])
