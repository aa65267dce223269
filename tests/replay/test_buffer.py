import json
import re
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st

import replay.memory.memory
from mixer.loading.reader import SampleError
from mixer.utils.errors import ErrorFacts, InvalidTypeError, InvalidValueError
from replay import MIR, OnDisk, ReplayBuffer
from replay.memory.held_classes import HeldClasses
from replay.selection import Reservoir, Ring
from tests.refusals import refused
from tests.replay.buffers import STORAGES, InTurn, letters, snapshot
from tests.replay.selection.offering import BY_TASK, MAKERS

ALL = {**MAKERS, **BY_TASK}


def remember(buffer: ReplayBuffer, source: str, dataset: Any, indices: Any = None) -> None:
    """Remembers samples with all that any selection may need, which depends on the sample alone."""
    picked = list(range(len(dataset)) if indices is None else indices)
    each = [np.random.default_rng([0, len(source), index]) for index in picked]
    rows = np.array([random.uniform(size=6) for random in each]).reshape(-1, 6)
    features = torch.tensor(rows[:, 2:], requires_grad=True)
    known = {"labels": (rows[:, 0] * 4).astype(int), "losses": rows[:, 1], "features": features}
    buffer.remember(source, dataset, picked, **known)


def make(selection: str, storage: str, folder: Path, retrieval: Any = "Uniform") -> ReplayBuffer:
    place, is_online = STORAGES[storage](folder / "rows"), selection not in BY_TASK
    return ReplayBuffer(10, ALL[selection](), place, retrieval, is_online=is_online, seed=3)


def contents(buffer: ReplayBuffer) -> list[Any]:
    return [buffer[slot]["text"] for slot in range(len(buffer))]


def draw(buffer: ReplayBuffer, *counts: int) -> list[list[Any]]:
    cursor, drawn = buffer.new_cursor(0), []
    for count in counts:
        start = cursor.advance(count)
        reader = buffer.reader({})
        drawn.append([reader[address]["text"] for address in cursor.references(range(start, start + count)).tolist()])
    return drawn


@pytest.mark.parametrize("storage", STORAGES)
def test_payloads_stay_with_their_entries(storage: str, tmp_path: Path) -> None:
    buffer, data = make("Reservoir", storage, tmp_path), letters(50)
    for start in (0, 20):
        numbers = range(start, start + 20 + start // 2)
        logits = [np.full((1 + number % 3, 2), number, np.float32) for number in numbers]
        buffer.remember("a", data, numbers, payloads={"logits": logits})
    slots = np.array([7, 0, 3])
    for slot, found in zip(slots.tolist(), buffer.payloads(slots, "logits"), strict=True):
        number = int(buffer[slot]["text"][1:])
        assert found.tolist() == [[number, number]] * (1 + number % 3)
        assert found.dtype == np.float32
    with refused("payloads", expected="features"):
        buffer.payloads(slots, "features")
    buffer.forget(buffer.entries["number"][:8].tolist())
    buffer.remember("a", data, range(40))  # some of these come in without
    with refused("payloads", expected="logits"):
        buffer.payloads(np.arange(len(buffer)), "logits")


def test_a_sample_that_cannot_be_loaded_leaves_the_buffer_as_it_was() -> None:
    class Broken(list[Any]):
        def __getitem__(self, index: Any) -> Any:
            if index == 17:
                raise OSError("disk on fire")
            return super().__getitem__(index)

    buffer = ReplayBuffer(30, storage="memory", seed=0)
    buffer.remember("a", letters(), range(5))
    before = contents(buffer)
    with pytest.raises(SampleError):
        buffer.remember("b", Broken(letters(20)))
    assert (contents(buffer), buffer.num_offered) == (before, 5)
    with pytest.raises(SampleError):
        buffer.remember("c", Broken(letters()))  # entries that were to make room are gone
    assert 0 < len(buffer) == buffer.selection.size <= 5
    assert set(contents(buffer)) <= set(before)
    buffer.remember("a", letters(), range(5, 9))
    assert len(buffer) == buffer.selection.size


def test_a_buffer_that_keeps_contents_takes_another_data_set_of_the_same_name(tmp_path: Path) -> None:
    buffer, other = (ReplayBuffer(20, storage="memory") for _ in range(2))
    buffer.remember("new", ["a", "b"])
    buffer.save(tmp_path)
    buffer.remember("new", ["c", "d", "e"])
    assert sorted(buffer[slot] for slot in range(len(buffer))) == list("abcde")
    assert buffer.num_samples_by_source == {"new (1)": 2, "new": 3}
    assert len(buffer.find("new", [0])) == len(buffer.find("new (1)", [0])) == 1
    other.remember("new", ["x"])
    other.load(tmp_path)
    other.remember("new", ["x"])
    assert sorted(other[slot] for slot in range(len(other))) == ["a", "b", "x"]


@pytest.mark.parametrize("retrieval", ["Uniform", InTurn()])
@pytest.mark.parametrize("selection", ["Reservoir", "Ring by task", "ClassBalanced", "Herding"])
@settings(max_examples=25)
@given(data=st.data())
def test_whatever_is_forgotten_is_gone_and_does_not_come_back(selection: str, retrieval: Any, data: Any) -> None:
    """Against a plain model: what is in the buffer is known by its own number."""
    buffer = make(selection, "memory", Path(), retrieval)
    first, second, gone, cursor = letters(30), letters(12, "t"), set[str](), buffer.new_cursor(0)
    for _ in range(data.draw(st.integers(1, 6))):
        before = dict(zip(buffer.entries["number"].tolist(), contents(buffer), strict=True))
        match data.draw(st.sampled_from(["remember", "forget", "find", "draw"])):
            case "remember":
                name, source = data.draw(st.sampled_from([("a", first), ("bb", second)]))
                start = data.draw(st.integers(0, len(source)))
                indices = range(start, data.draw(st.integers(start, len(source))))
                offered = buffer.num_offered
                remember(buffer, name, source, indices)
                assert buffer.num_offered == offered + len(indices)
            case "forget" if len(buffer):
                numbers = sorted(data.draw(st.sets(st.sampled_from(sorted(before)))))
                assert buffer.forget([*numbers, 10**6]) == len(numbers)
                gone |= {before.pop(number) for number in numbers}
                assert {*buffer.entries["number"].tolist()} == set(before)
            case "find" if "a" in buffer.sources.names:
                found = buffer.find("a", range(0, 30, 2))
                assert found == [n for n, text in before.items() if text[0] == "s" and int(text[1:]) % 2 == 0]
                assert buffer.forget(found) == len(found)
                gone |= {before.pop(number) for number in found}
            case "draw" if len(buffer):
                count = data.draw(st.integers(0, len(buffer)))
                start = cursor.advance(count)
                drawn = cursor.references(range(start, start + count)).tolist()
                assert len(set(drawn)) == count
                assert set(drawn) <= set(buffer._entries["row"].tolist())
        assert buffer.selection.size == len(buffer) <= 10
        assert not gone & set(contents(buffer))
        assert len(set(contents(buffer))) == len(buffer)


def test_what_is_forgotten_leaves_the_disk_too(tmp_path: Path) -> None:
    buffer = ReplayBuffer(12, storage=OnDisk(tmp_path / "rows", rows_per_segment=4), retrieval=InTurn(), seed=0)
    data = [{"text": f"secret-{number:02d}-end"} for number in range(12)]
    buffer.remember("a", data)

    def on_disk() -> set[int]:
        content = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
        return {number for number in range(12) if b"secret-%02d-end" % number in content}

    assert on_disk() == set(range(12))
    assert buffer.forget(buffer.find("a", [2, 3, 8])) == 3
    assert on_disk() == set(range(12)) - {2, 3, 8}
    buffer.remember("a", data)
    assert on_disk() == set(range(12)) - {2, 3, 8}
    buffer.save(tmp_path / "saved")
    again = ReplayBuffer(12, storage=OnDisk(tmp_path / "new", rows_per_segment=4), retrieval=InTurn())
    again.load(tmp_path / "saved")
    again.remember("a", data)
    assert again.find("a", range(12)) == again.entries["number"].tolist()
    assert not again.find("a", [2, 3, 8])


KINDS = [(name, "memory", "Uniform") for name in ALL]
KINDS += [("ClassBalanced", "references", "Uniform"), ("ClassBalanced", "disk", InTurn())]


@pytest.mark.parametrize(("selection", "storage", "retrieval"), KINDS)
def test_a_saved_buffer_goes_on_as_it_was(selection: str, storage: str, retrieval: Any, tmp_path: Path) -> None:
    first, second = letters(30), letters(40, "t")
    buffer, again = (make(selection, storage, tmp_path / name, retrieval) for name in ("one", "two"))
    remember(buffer, "a", first)
    draw(buffer, 4, 3)
    buffer.forget(buffer.entries["number"][1:3].tolist())
    buffer.save(tmp_path / "saved")
    again.load(tmp_path / "saved")
    assert snapshot(again) == snapshot(buffer)
    if storage == "references":
        with refused("dataset", stream="a"):
            again[0]
        again.remember("a", first, [])  # gives the data set again
    ends = []
    for each in (buffer, again):
        remember(each, "bb", second, range(20))
        drawn = draw(each, 5, len(each), 2)
        remember(each, "a", first)
        remember(each, "bb", second)
        ends.append((snapshot(each), contents(each), drawn))
    assert ends[0] == ends[1]


def check_left(buffer: ReplayBuffer, folder: Path, option: str) -> None:
    """An error about an option or a file leaves the buffer as it is."""
    before = snapshot(buffer), contents(buffer)
    with pytest.raises(ValueError, match=re.escape(option)) as info:
        buffer.load(folder)
    assert type(info.value) in (ValueError, InvalidValueError)
    assert (snapshot(buffer), contents(buffer)) == before


@pytest.mark.parametrize(
    ("options", "option", "found"),
    [
        ({"capacity": 9}, "capacity", 9),
        ({"selection": "Reservoir"}, "selection", "Reservoir"),
        ({"retrieval": InTurn()}, "retrieval", "InTurn"),
        ({"retrieval": MIR(candidates=8)}, "retrieval_options", {"candidates": 8, "learning_rate": None}),
        ({"storage": "references"}, "keeps_contents", False),
    ],
)
def test_a_buffer_of_another_kind_is_refused(options: Any, option: str, found: Any, tmp_path: Path) -> None:
    selection, retrieval = Ring(slots_per_group=1), MIR(candidates=7)
    own = {"capacity": 8, "storage": "memory", "selection": selection, "retrieval": retrieval, "seed": 0}
    ReplayBuffer(**own).save(tmp_path)
    with refused(option, found=found):
        ReplayBuffer(**{**own, **options}).load(tmp_path)


@pytest.mark.parametrize("storage", STORAGES)
def test_missing_and_torn_files_are_named_and_the_buffer_stays_as_it_is(storage: str, tmp_path: Path) -> None:
    buffer, other = (make("Reservoir", storage, tmp_path / name) for name in ("one", "two"))
    remember(buffer, "a", letters())
    buffer.save(tmp_path / "saved")
    remember(other, "bb", letters(30, "u"))
    for path in [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]:
        whole = path.read_bytes()
        for torn in (None, b"", whole[: len(whole) // 2], whole[:-2]):
            path.unlink(missing_ok=True)
            if torn is not None:
                path.write_bytes(torn)
            check_left(other, tmp_path / "saved", path.name)
        path.write_bytes(whole)
    other.load(tmp_path / "saved")
    assert snapshot(other)["entries"] == snapshot(buffer)["entries"]


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        *(({name: []}, "buffer.json is damaged") for name in ("num_drawn", "parts", "plain", "digests")),
        ({"plain": {"selection/size": "8"}}, "buffer.json is damaged (selection"),
        *(({name: ...}, "buffer.json") for name in ("key", "num_offered", "sources", "forgotten", "parts", "plain")),
        ({"format": 99}, "format 99"),
        ({"entries": 1}, "the selection knows 8 entries, and there are 7"),
    ],
)
def test_a_saved_value_that_cannot_be_is_refused(changes: dict[str, Any], said: str, tmp_path: Path) -> None:
    buffer = ReplayBuffer(8, seed=0)
    buffer.remember("a", letters())
    buffer.save(tmp_path)
    content = {**json.loads((tmp_path / "buffer.json").read_text()), "crc32": ..., **changes}
    changed = {name: value for name, value in content.items() if value is not ...}
    (tmp_path / "buffer.json").write_text(json.dumps(changed))
    if "entries" in changes:
        with np.load(tmp_path / "buffer.npz") as file:
            arrays = {name: own[:-1] if name.startswith("entries/") else own for name, own in file.items()}
        np.savez(tmp_path / "buffer.npz", **arrays)
    other = ReplayBuffer(8, seed=0)
    other.remember("a", letters(), [1, 2])
    check_left(other, tmp_path, said)


@pytest.mark.parametrize("row", [0, 77, -1])
@pytest.mark.parametrize("storage", ["memory", "disk"])
def test_an_entry_whose_row_is_not_there_is_refused(storage: str, row: int, tmp_path: Path) -> None:
    buffer, other = (make("Reservoir", storage, tmp_path / name) for name in ("one", "two"))
    remember(buffer, "a", letters())
    remember(other, "bb", letters(30, "u"))
    buffer.rows.drop(buffer._entries["row"][:1])
    if row:  # else it is the one that was dropped
        buffer._entries["row"][0] = row
    buffer.save(tmp_path / "saved")
    check_left(other, tmp_path / "saved", "lacks row")


def test_a_crash_while_it_is_saved_leaves_no_mixture(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = ReplayBuffer(8, storage="memory")
    buffer.remember("a", letters())
    buffer.save(tmp_path)
    monkeypatch.setattr(replay.memory.memory, "write_state", None)
    with pytest.raises(TypeError):
        buffer.save(tmp_path)
    check_left(ReplayBuffer(8, storage="memory"), tmp_path, "buffer.json is missing")


@pytest.mark.parametrize(
    ("option", "value"),
    [
        *(("capacity", value) for value in (1.5, "10", None, 0)),
        *(("selection", value) for value in ("Reservior", *BY_TASK)),
        *(("seed", value) for value in (1.5, True)),
        *(("streams", value) for value in ("math", ())),
        ("label_column", 3),
    ],
)
def test_wrong_options_are_named(option: str, value: Any) -> None:
    with pytest.raises((ValueError, TypeError), match=f"^{option}"):
        ReplayBuffer(**{"capacity": 5, option: value})


@pytest.mark.parametrize(
    ("selection", "given", "option"),
    [
        *((name, {}, "selection") for name in ("ClassBalanced", "Ring", "Herding")),
        ("Herding", {"labels": [0, 0, 1, 1]}, "selection"),
        *(("Reservoir", {name: np.zeros((3, 2))}, name) for name in ("labels", "losses", "features")),
        ("Reservoir", {"payloads": {"z": [0] * 3}}, "payloads['z']"),
        *(("Reservoir", {"indices": indices}, "indices") for indices in ([3, 40], [3, -1], 1)),
        *(("Reservoir", {"labels": labels}, "labels") for labels in ([*"abcd"], [0.5, 1.0, 0, 0], 3)),
        ("Reservoir", {"dataset": iter([1, 2])}, "dataset"),
        ("Reservoir", {"source": ["a"]}, "source"),
        ("Reservoir", {"payloads": {"z": 1}}, "payloads['z']"),
        ("Reservoir", {"payloads": [1]}, "payloads"),
    ],
)
def test_what_cannot_be_remembered_is_named_and_not_kept(selection: str, given: Any, option: str) -> None:
    buffer = make(selection, "references", Path())
    with refused(option, ErrorFacts):
        buffer.remember(**{"source": "o", "dataset": letters(4), **given})
    assert len(buffer) == buffer.num_offered == 0


def test_wrong_arguments_are_named() -> None:
    buffer = ReplayBuffer(5)
    buffer.remember("p", letters(), [])
    with refused("source", found="b"):
        buffer.find("b", [1])
    with refused("indices", InvalidTypeError):
        buffer.find("p", [0.5])
    with refused("numbers", InvalidTypeError):
        buffer.forget(3)
    with pytest.raises(IndexError):
        buffer[0]


def table(labels: list[Any]) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"number": list(range(len(labels))), "label": labels})


@pytest.mark.parametrize(
    ("labels", "selection", "storage", "expected"),
    [
        *((labels, "Reservoir", "references", {}) for labels in (["a"], [[1, 2], [3]], [0.5], list(range(1001)))),
        ([0, 1], "Reservoir", "memory", {}),  # a copy, of which only some selections know the class
        ([0, 1], "ClassBalanced", "memory", {0: 1, 1: 1}),
    ],
)
def test_classes_that_are_unknown_or_too_many_are_not_counted(labels, selection, storage, expected) -> None:
    buffer = ReplayBuffer(len(labels), selection, storage)
    buffer.remember("data", table(labels))
    assert HeldClasses().count(buffer) == expected


class Wrong(Reservoir):
    """Returns what a function makes of the right slots."""

    def __init__(self, change: Any):
        self._change = change

    def choose(self, offers: Any) -> Any:
        return self._change(super().choose(offers))


@pytest.mark.parametrize(
    ("change", "kind", "option"),
    [
        (lambda slots: slots[:-1], InvalidValueError, "choose(...)"),
        (lambda slots: slots.astype(float), InvalidTypeError, "choose(...)"),
        (lambda slots: slots + 1, InvalidValueError, "choose(...)"),
        (lambda slots: slots * 3, InvalidValueError, "choose(...)"),
        (lambda slots: np.full(6, -1), InvalidValueError, "size"),
    ],
)
def test_slots_that_a_selection_must_not_choose_are_refused(change: Any, kind: Any, option: str) -> None:
    buffer = ReplayBuffer(8, Wrong(change), seed=0)
    with refused(f"selection=Wrong: {option}", kind):
        buffer.remember("a", letters(6))
    assert len(buffer) == 0
