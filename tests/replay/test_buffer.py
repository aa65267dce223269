"""A buffer by itself: what it takes in, keeps, finds, forgets and saves."""

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mixer.loading.reader import SampleError
from mixer.utils.files import write_json
from replay import MIR, InMemory, OnDisk, ReplayBuffer
from replay.retrieval import LeastRecent
from replay.selection import GradientDiversity, Offers, Ring
from replay.shared.random_numbers import RandomNumbers
from replay.storage.sources import addresses
from tests.replay.buffers import STORAGES, letters, snapshot
from tests.replay.selection.offering import BY_TASK, MAKERS

ONLINE = {**{name: maker for name, maker in MAKERS.items() if name != "GradientDiversity"}}
ALL = {**ONLINE, **BY_TASK}


def remember(buffer: ReplayBuffer, source: str, dataset: Any, indices: Any = None, seed: int = 0) -> None:
    """Remembers samples with all that any selection may need, which depends on the sample alone."""
    picked = list(range(len(dataset)) if indices is None else indices)
    each = [np.random.default_rng([seed, len(source), index]) for index in picked]
    rows = np.array([random.uniform(size=6) for random in each]).reshape(-1, 6)
    known = {"labels": (rows[:, 0] * 4).astype(int), "losses": rows[:, 1], "features": rows[:, 2:]}
    buffer.remember(source, dataset, picked, **known)


def make(selection: str, storage: str, folder: Path, retrieval: str = "Uniform", **options: Any) -> ReplayBuffer:
    is_online = selection not in BY_TASK
    place = STORAGES[storage](folder / "rows")
    return ReplayBuffer(10, ALL[selection](), place, retrieval, is_online=is_online, seed=3, **options)


def contents(buffer: ReplayBuffer) -> list[Any]:
    return [buffer[slot]["text"] for slot in range(len(buffer))]


def draw(buffer: ReplayBuffer, *counts: int) -> list[list[Any]]:
    cursor, drawn = buffer.new_cursor(0), []
    for count in counts:
        start = cursor.advance(count)
        reader = buffer.reader({})
        drawn.append([reader[address]["text"] for address in cursor.references(range(start, start + count)).tolist()])
    return drawn


# ---- Taking in ----


def textbook_reservoir(key: int, capacity: int, first: int, kept: list[Any], samples: list[Any]) -> list[Any]:
    random, kept = RandomNumbers(key), list(kept)
    for number, sample in enumerate(samples, first):
        place = int(random.integers(np.array([number]), np.array([number + 1]))[0])
        if number < capacity:
            kept.append(sample)
        elif place < capacity:
            kept[place] = sample
    return kept


@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("splits", [[60], [3, 0, 20, 1, 36]])
def test_it_is_the_textbook_reservoir_however_the_samples_are_offered(
    splits: list[int], storage: str, tmp_path: Path
) -> None:
    buffer, data, done = make("Reservoir", storage, tmp_path), letters(60), 0
    for count in splits:
        buffer.remember("a", data, range(done, done + count))
        done += count
        assert len(buffer) == min(10, done)
    assert contents(buffer) == [data[n]["text"] for n in textbook_reservoir(3, 10, 0, [], list(range(60)))]
    assert buffer.num_offered == 60
    assert len(set(buffer.entries["number"].tolist())) == 10
    assert buffer.num_kept >= 10
    assert buffer.num_samples_by_source == {"a": 10}


@pytest.mark.parametrize("selection", ALL)
def test_storage_and_the_order_of_calls_change_nothing_of_what_is_kept(selection: str, tmp_path: Path) -> None:
    found = []
    for storage in STORAGES:
        buffer = make(selection, storage, tmp_path)
        for name, data in (("a", letters(30)), ("bb", letters(25, "t"))):
            remember(buffer, name, data)
        assert len(buffer) <= 10
        assert sum(buffer.num_samples_by_source.values()) == len(buffer)
        tasks, addressed = buffer.entries["task"], buffer._entries["address"]
        assert (addressed >> 40 == tasks).all()
        expected = [f"{'st'[task]}{where % 2**40}" for task, where in zip(tasks, addressed, strict=True)]
        assert contents(buffer) == expected
        found.append((snapshot(buffer), contents(buffer), draw(buffer, 4, 10, 1)))
    assert found[0] == found[1] == found[2]


def test_rules_are_copied_so_that_buffers_share_nothing() -> None:
    selection, retrieval = Ring(by="task"), LeastRecent()
    first, second = (ReplayBuffer(4, selection, retrieval=retrieval, seed=0) for _ in range(2))
    first.remember("a", ["a", "b"])
    second.remember("b", ["c", "d", "e"])
    assert (first.selection.size, second.selection.size) == (2, 3)
    assert first.retrieval.slots(0, 2, 2).tolist() == [0, 1]


def test_labels_come_from_a_column_unless_they_are_given() -> None:
    data = datasets.Dataset.from_dict({"text": list("abcdef"), "label": [0, 0, 0, 1, 1, 2], "kind": [5, 6, 5, 6, 5, 6]})
    for options, given_labels, expected in (
        ({}, None, [0, 0, 0, 1, 1, 2]),
        ({"label_column": "kind"}, None, [5, 6, 5, 6, 5, 6]),
        ({}, [9, 8, 9, 8, 9, 8], [9, 8, 9, 8, 9, 8]),
    ):
        buffer = ReplayBuffer(6, "ClassBalanced", **options)
        buffer.remember("a", data, labels=given_labels)
        assert buffer.entries["label"].tolist() == expected
    buffer = ReplayBuffer(6, "ClassBalanced", label_column="sort")
    with pytest.raises(ValueError, match=r"label_column='sort': some of the data sets \['a'\] have no column"):
        buffer.remember("a", data)


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
    with pytest.raises(ValueError, match="came in without its 'features'"):
        buffer.payloads(slots, "features")
    buffer.forget(buffer.entries["number"][:8].tolist())
    buffer.remember("a", data, range(40))  # some of these come in without
    with pytest.raises(ValueError, match="came in without its 'logits'"):
        buffer.payloads(np.arange(len(buffer)), "logits")


# ---- Forgetting ----


@pytest.mark.parametrize("retrieval", ["Uniform", "LeastRecent"])
@pytest.mark.parametrize("selection", ALL)
@given(data=st.data())
def test_whatever_is_forgotten_is_gone_and_does_not_come_back(selection: str, retrieval: str, data: Any) -> None:
    """Against a plain model: what is in the buffer is known by its own number."""
    buffer = make(selection, "memory", Path(), retrieval)
    first, second = letters(30), letters(12, "t")
    gone: set[str] = set()
    cursor = buffer.new_cursor(0)
    for _ in range(data.draw(st.integers(1, 6))):
        match data.draw(st.sampled_from(["remember", "forget", "find", "draw"])):
            case "remember":
                name, source = data.draw(st.sampled_from([("a", first), ("bb", second)]))
                start = data.draw(st.integers(0, len(source)))
                indices = range(start, data.draw(st.integers(start, len(source))))
                offered = buffer.num_offered
                remember(buffer, name, source, indices)
                assert buffer.num_offered == offered + len(indices)
            case "forget" if len(buffer):
                slots = data.draw(st.sets(st.integers(0, len(buffer) - 1)))
                before = dict(zip(buffer.entries["number"].tolist(), contents(buffer), strict=True))
                numbers = [int(buffer.entries["number"][slot]) for slot in slots]
                assert buffer.forget([*numbers, 10**6]) == len(numbers)
                gone |= {before.pop(number) for number in numbers} - set(before.values())  # one may be there twice
                assert set(before.values()) - gone == set(contents(buffer)) - gone
                assert {*buffer.entries["number"].tolist()} == set(before)
            case "find" if "a" in buffer.sources.names:
                found = buffer.find("a", range(0, 30, 2))
                own = dict(zip(buffer.entries["number"].tolist(), contents(buffer), strict=True))
                assert found == [n for n, text in own.items() if text[0] == "s" and int(text[1:]) % 2 == 0]
                assert buffer.forget(found) == len(found)
                gone |= {own.pop(number) for number in found} - set(own.values())
            case "draw" if len(buffer):
                count = data.draw(st.integers(0, len(buffer)))
                start = cursor.advance(count)
                drawn = cursor.references(range(start, start + count)).tolist()
                assert len(set(drawn)) == count
                assert set(drawn) <= set(buffer._entries["row"].tolist())
        assert buffer.selection.size == len(buffer) <= 10
        assert not gone & set(contents(buffer))


def test_what_is_forgotten_leaves_the_disk_too(tmp_path: Path) -> None:
    buffer = ReplayBuffer(12, storage=OnDisk(tmp_path / "rows", rows_per_segment=4), retrieval="LeastRecent", seed=0)
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
    assert buffer.find("a", [2, 3, 8]) == []
    buffer.save(tmp_path / "saved")
    again = ReplayBuffer(12, storage=OnDisk(tmp_path / "new", rows_per_segment=4), retrieval="LeastRecent")
    again.load(tmp_path / "saved")
    again.remember("a", data)
    assert again.find("a", range(12)) == again.entries["number"].tolist()
    assert not again.find("a", [2, 3, 8])


def test_rows_without_an_index_are_not_held_back_by_what_was_forgotten() -> None:
    buffer = ReplayBuffer(5, storage=InMemory(), seed=0)
    nowhere = Offers(3, 0, tasks=np.zeros(3, dtype=np.int64))

    def make_rows(numbers: Any) -> list[Any]:
        from replay.storage import Row

        return [Row({"text": f"r{number}"}) for number in numbers.tolist()]

    buffer.sources.add_unreadable("rows")
    buffer.offer(nowhere, lambda numbers: np.full(len(numbers), -1), make_rows)
    assert buffer.forget([0, 1]) == 2
    buffer.offer(nowhere, lambda numbers: np.full(len(numbers), -1), make_rows)
    assert len(buffer) == 4


# ---- Saving ----


@pytest.mark.parametrize("retrieval", ["Uniform", "LeastRecent"])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("selection", ALL)
def test_a_saved_buffer_goes_on_as_the_one_that_was_saved(
    selection: str, storage: str, retrieval: str, tmp_path: Path
) -> None:
    first, second = letters(30), letters(40, "t")
    buffer = make(selection, storage, tmp_path / "one", retrieval)
    remember(buffer, "a", first)
    draw(buffer, 4, 3)
    buffer.forget(buffer.entries["number"][1:3].tolist())
    buffer.save(tmp_path / "saved")
    again = make(selection, storage, tmp_path / "two", retrieval)
    again.load(tmp_path / "saved")
    assert snapshot(again) == snapshot(buffer)
    ends = []
    for each in (buffer, again):
        if each is again and storage == "references":
            again.remember("a", first, [])  # gives the data set again
        remember(each, "bb", second, range(20))
        drawn = draw(each, 5, len(each), 2)
        remember(each, "a", first)
        remember(each, "bb", second)
        ends.append((snapshot(each), contents(each), drawn))
    assert ends[0] == ends[1]


def test_an_empty_buffer_can_be_saved(tmp_path: Path) -> None:
    for number, buffer in enumerate((ReplayBuffer(3), ReplayBuffer(3, storage="memory"))):
        buffer.save(tmp_path / str(number))
        again = ReplayBuffer(3, storage=buffer.storage)
        again.load(tmp_path / str(number))
        for each in (buffer, again):
            each.remember("a", letters(9))
        assert contents(again) == contents(buffer)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"capacity": 9}, "saved with capacity=8 and has capacity=9 now"),
        ({"selection": "KeyedReservoir"}, "saved with selection='Reservoir' and has selection='KeyedReservoir' now"),
        ({"retrieval": "LeastRecent"}, "saved with retrieval='Uniform' and has retrieval='LeastRecent' now"),
        ({"storage": "references"}, "saved with keeps_contents=True and has keeps_contents=False now"),
    ],
)
def test_a_buffer_of_another_kind_is_refused_and_left_as_it_is(
    options: dict[str, Any], message: str, tmp_path: Path
) -> None:
    buffer = ReplayBuffer(8, storage="memory")
    buffer.remember("a", letters())
    buffer.save(tmp_path)
    other = ReplayBuffer(**{"capacity": 8, "storage": "memory", **options})
    other.remember("b", letters(30, "u"))
    before = snapshot(other), contents(other)
    with pytest.raises(ValueError, match=message):
        other.load(tmp_path)
    assert (snapshot(other), contents(other)) == before


@pytest.mark.parametrize("storage", STORAGES)
def test_missing_and_torn_files_are_named_and_the_buffer_stays_as_it_is(storage: str, tmp_path: Path) -> None:
    buffer = make("Reservoir", storage, tmp_path / "one")
    remember(buffer, "a", letters())
    buffer.save(tmp_path / "saved")
    files = [path for path in (tmp_path / "saved").rglob("*") if path.is_file()]
    assert {"buffer.json", "buffer.npz"} < {path.name for path in files}
    other = make("Reservoir", storage, tmp_path / "two")
    remember(other, "bb", letters(30, "u"))
    before = snapshot(other), contents(other)
    for path in files:
        whole = path.read_bytes()
        for torn in (None, b"", whole[: len(whole) // 2], whole[:-1]):
            path.unlink(missing_ok=True)
            if torn is not None:
                path.write_bytes(torn)
            if path.name == "buffer.json" and torn == whole[:-1] and whole.endswith(b"\n"):
                continue  # nothing is missing
            with pytest.raises(ValueError, match=path.name):
                other.load(tmp_path / "saved")
            assert (snapshot(other), contents(other)) == before
        path.write_bytes(whole)
    other.load(tmp_path / "saved")
    assert snapshot(other)["entries"] == snapshot(buffer)["entries"]


def test_a_file_of_another_version_or_make_is_refused(tmp_path: Path) -> None:
    buffer = ReplayBuffer(8)
    buffer.save(tmp_path)
    state = json.loads((tmp_path / "buffer.json").read_text())
    del state["crc32"]
    write_json(tmp_path / "buffer.json", {**state, "format": 99}, sealed=True)
    with pytest.raises(ValueError, match="format 99, but this version reads up to 1: upgrade"):
        buffer.load(tmp_path)
    (tmp_path / "buffer.json").write_text("{}")
    with pytest.raises(ValueError, match="buffer"):
        buffer.load(tmp_path)


def test_a_crash_while_it_is_saved_again_leaves_no_mixture_of_both(tmp_path: Path, monkeypatch: Any) -> None:
    import replay.memory.memory

    buffer = ReplayBuffer(8, storage="memory")
    buffer.remember("a", letters())
    buffer.save(tmp_path)
    buffer.remember("a", letters())

    def fail(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(replay.memory.memory, "write_state", fail)
    with pytest.raises(KeyboardInterrupt):
        buffer.save(tmp_path)
    with pytest.raises(ValueError, match=r"buffer\.json is missing"):
        ReplayBuffer(8, storage="memory").load(tmp_path)


def test_a_data_set_that_changed_or_is_not_there_is_named(tmp_path: Path) -> None:
    buffer = ReplayBuffer(8, seed=0)
    buffer.remember("a", letters(40))
    buffer.save(tmp_path)
    for changed, how in ((letters(41), "had 40 samples and has 41"), (letters(40, "u"), "some of its samples")):
        other = ReplayBuffer(8)
        other.remember("a", changed, [])
        with pytest.raises(ValueError, match=f"Source 'a' has changed.*{how}"):
            other.load(tmp_path)
        again = ReplayBuffer(8)
        again.load(tmp_path)
        with pytest.raises((ValueError, SampleError), match=r"refers to samples of 'a', whose data set is not there"):
            again[0]
        with pytest.raises(ValueError, match=f"Source 'a' has changed.*{how}"):
            again.remember("a", changed)
        again.remember("a", letters(40), [])
        assert contents(again) == contents(buffer)


# ---- Wrong input ----


@pytest.mark.parametrize("capacity", [1.5, True, "10", None])
def test_a_capacity_that_is_no_whole_number_is_refused(capacity: Any) -> None:
    with pytest.raises(TypeError, match="capacity must be a whole number of samples"):
        ReplayBuffer(capacity)


@pytest.mark.parametrize("capacity", [0, -1])
def test_a_capacity_below_one_is_refused(capacity: int) -> None:
    with pytest.raises(ValueError, match=f"capacity must be a whole number, 1 or more, got {capacity}"):
        ReplayBuffer(capacity)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"selection": "Reservior"}, ValueError, "Did you mean 'Reservoir'"),
        ({"selection": 3}, TypeError, "selection"),
        ({"retrieval": "Unifrom"}, ValueError, "Did you mean 'Uniform'"),
        ({"storage": "tape"}, ValueError, "storage has to be one of"),
        ({"selection": "Herding"}, ValueError, "set is_online=False"),
        ({"selection": "KCenter"}, ValueError, "set is_online=False"),
        ({"streams": "math"}, TypeError, r"streams must be a list of names.*\['math'\]"),
        ({"seed": 1.5}, TypeError, "seed must be a whole number"),
        ({"seed": True}, TypeError, "seed must be a whole number"),
    ],
)
def test_wrong_options_say_what_is_right(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ReplayBuffer(5, **options)


@pytest.mark.parametrize(
    ("selection", "need"),
    [
        ("ClassBalanced", "label"),
        ("Ring", "label"),
        ("Surprise", "loss"),
        ("LossAware", "loss"),
        ("Herding", "features"),
    ],
)
def test_what_a_selection_needs_and_nobody_gives_is_named(selection: str, need: str) -> None:
    buffer = ReplayBuffer(5, selection, is_online=selection != "Herding")
    with pytest.raises(ValueError, match=rf"selection={selection} needs the \[.*'{need}'"):
        buffer.remember("a", letters())
    assert len(buffer) == buffer.num_offered == 0


@pytest.mark.parametrize("name", ["labels", "losses", "features"])
def test_wrong_lengths_are_named(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name} must have one entry a sample: 4, got 3"):
        ReplayBuffer(5).remember(
            "a", letters(), range(4), **{name: np.zeros((3, 2)) if name == "features" else [0] * 3}
        )


def test_wrong_payloads_indices_and_data_sets_are_refused_before_anything_is_kept() -> None:
    buffer = ReplayBuffer(5)
    with pytest.raises(ValueError, match=r"payloads\['logits'\] must have one entry a sample: 4, got 3"):
        buffer.remember("a", letters(), range(4), payloads={"logits": [0] * 3})
    for indices, which in (([3, 40], "40"), ([-1], "-1")):
        with pytest.raises(ValueError, match=rf"'a'.*40 samples.*{which}|indices.*{which}"):
            buffer.remember("a", letters(), indices)
    with pytest.raises(TypeError, match=r"'rows'.*__len__"):
        buffer.remember("rows", iter([1, 2]))
    assert len(buffer) == buffer.num_offered == 0
    with pytest.raises(ValueError, match=r"find: there is no source 'b'; the buffer's are \['a'\]"):
        buffer.find("b", [1])
    for slot in (0, -1):
        with pytest.raises(IndexError, match="has 0 entries"):
            buffer[slot]


def test_labels_and_losses_that_are_no_numbers_are_refused() -> None:
    for given_values in ({"labels": ["x", "y"]}, {"labels": [0.5, 1.0]}, {"losses": [[1.0], [2.0]]}):
        with pytest.raises((ValueError, TypeError), match=next(iter(given_values))):
            ReplayBuffer(5).remember("a", letters(), range(2), **given_values)


def test_a_sample_that_cannot_be_loaded_leaves_the_buffer_as_it_was() -> None:
    class Broken(list):
        def __getitem__(self, index: Any) -> Any:
            if index == 17:
                raise OSError("disk on fire")
            return super().__getitem__(index)

    buffer = ReplayBuffer(30, storage="memory", seed=0)
    buffer.remember("a", letters(), range(5))
    before = snapshot(buffer), contents(buffer)
    with pytest.raises(SampleError, match="disk on fire"):
        buffer.remember("b", Broken(letters(20)))
    assert snapshot(buffer)["entries"] == before[0]["entries"]
    assert contents(buffer) == before[1]
    assert buffer.num_offered == 5
    with pytest.raises(SampleError, match="disk on fire"):
        buffer.remember("c", Broken(letters()))  # entries that were to make room are gone
    assert 0 < len(buffer) == buffer.selection.size <= 5
    assert set(contents(buffer)) <= set(before[1])
    buffer.remember("a", letters(), range(5, 9))
    assert len(buffer) == buffer.selection.size


def test_addresses_of_a_source_say_which_sample_it_is() -> None:
    buffer = ReplayBuffer(3)
    for name in ("a", "b"):
        buffer.remember(name, letters(2, name))
    assert set(buffer._entries["address"].tolist()) <= {*addresses(0, [0, 1]).tolist(), *addresses(1, [0, 1]).tolist()}


def test_a_buffer_that_keeps_contents_takes_another_data_set_of_the_same_name() -> None:
    buffer = ReplayBuffer(20, storage="memory")
    buffer.remember("new", ["a", "b"])
    buffer.remember("new", ["c", "d", "e"])
    assert sorted(buffer[slot] for slot in range(len(buffer))) == list("abcde")
    assert buffer.num_samples_by_source == {"new (1)": 2, "new": 3}
    assert len(buffer.find("new", [0])) == len(buffer.find("new (1)", [0])) == 1


def test_a_saved_buffer_that_keeps_contents_does_not_mind_a_data_set_that_changed(tmp_path: Path) -> None:
    buffer = ReplayBuffer(20, storage="memory")
    buffer.remember("new", ["a", "b"])
    buffer.save(tmp_path)
    other = ReplayBuffer(20, storage="memory")
    other.remember("new", ["x"])
    other.load(tmp_path)
    other.remember("new", ["x"])
    assert sorted(other[slot] for slot in range(len(other))) == ["a", "b", "x"]
    assert other.num_samples_by_source == {"new (1)": 2, "new": 1}


def test_options_of_the_rules_have_to_be_those_of_then(tmp_path: Path) -> None:
    ReplayBuffer(20, GradientDiversity(num_compared=4), retrieval=MIR(candidates=7)).save(tmp_path)
    for selection, retrieval, name in (
        (GradientDiversity(num_compared=5), MIR(candidates=7), "selection_options"),
        (GradientDiversity(num_compared=4), MIR(candidates=8), "retrieval_options"),
    ):
        with pytest.raises(ValueError, match=f"the buffer was saved with {name}"):
            ReplayBuffer(20, selection, retrieval=retrieval).load(tmp_path)


def test_a_loaded_buffer_on_disk_has_its_entries_there(tmp_path: Path) -> None:
    buffer = ReplayBuffer(20, storage=OnDisk(tmp_path / "one"))
    buffer.remember("new", ["a", "b"])
    buffer.save(tmp_path / "saved")
    other = ReplayBuffer(20, storage=OnDisk(tmp_path / "two"))
    other.load(tmp_path / "saved")
    assert other._entries._folder == tmp_path / "two"
    assert [other[slot] for slot in range(2)] == ["a", "b"]


def test_a_draw_knows_that_its_entries_were_forgotten() -> None:
    buffer = ReplayBuffer(20, seed=0)
    buffer.remember("new", list("abcdefgh"))
    cursor = buffer.new_cursor(0)
    start = cursor.advance(4)
    slots = cursor.slots(np.arange(start, start + 4))
    buffer.forget(buffer.entries["number"][slots[:1]].tolist())
    with pytest.raises(ValueError, match="while a step that draws from it was trained"):
        cursor.slots(np.arange(start, start + 4))


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"streams": 5}, TypeError, r"streams must be a list of names, such as \['new'\], got 5"),
        ({"streams": [5]}, TypeError, r"streams must be a list of names.* got \[5\]"),
        ({"streams": []}, ValueError, r"streams must name a stream, got \[\]; None takes all"),
        ({"label_column": 3}, TypeError, "label_column must be the name of a column, such as 'label', got 3"),
    ],
)
def test_options_of_the_wrong_kind_are_named(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        ReplayBuffer(5, **options)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda buffer: buffer.find("o", 1), r"indices must be a list of whole numbers, such as \[1\], got 1"),
        (lambda buffer: buffer.find("o", [0.5]), r"indices must be a list of whole numbers.* got \[0.5\]"),
        (lambda buffer: buffer.forget(3), r"numbers must be a list of whole numbers, such as \[3\], got 3"),
        (lambda buffer: buffer.remember("o", letters(3), 1), r"indices must be a list .* such as \[1\], got 1"),
        (lambda buffer: buffer.remember(["a"], ["a"]), r"source must be the name of the data set.* got \['a'\]"),
        (lambda buffer: buffer.remember("o", letters(3), labels=3), "labels must be a list or array .* got 3"),
        (lambda buffer: buffer.remember("o", letters(3), payloads=[1, 2]), "payloads must be a mapping.* got a list"),
        (lambda buffer: buffer.remember("o", letters(3), payloads={"z": 1}), r"payloads\['z'\] must be a list"),
    ],
)
def test_arguments_of_the_wrong_kind_are_named(call: Any, message: str) -> None:
    buffer = ReplayBuffer(5)
    buffer.remember("o", letters(3))
    with pytest.raises(TypeError, match=message):
        call(buffer)


def test_features_may_come_with_a_gradient_and_what_is_missing_is_named() -> None:
    buffer, features = ReplayBuffer(2, "Herding", is_online=False), torch.eye(3, requires_grad=True)
    for known, missing in (
        ({}, r"remember\(..., features=..., labels=...\), or name the label_column"),
        ({"features": features}, r"remember\(..., labels=...\), or name the label_column"),
        ({"labels": [0, 0, 1]}, r"remember\(..., features=...\)\.$"),
    ):
        with pytest.raises(ValueError, match=missing):
            buffer.remember("o", letters(3), **known)
    buffer.remember("o", letters(3), labels=torch.tensor([0, 0, 1]), features=features)
    assert len(buffer) == 2
