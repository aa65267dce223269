from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import TrainerCallback

from mixer import PiKE, Proportional, Stream, schedules
from replay import OnDisk, ReplayBuffer, ReplayRatio
from replay.shared.random_numbers import RandomNumbers
from tests.helpers import Tokens
from tests.refusals import refused
from tests.replay.buffers import STORAGES, Columns, InTurn, Masked, Watch, arrow, hexadecimal, make, snapshot, train


def two() -> dict[str, Tokens]:
    return {"a": Tokens(37, 1, length=8), "b": Tokens(23, 2, length=8)}


def counts_of(trainer: Any) -> Any:
    return trainer.ledger.to_pandas().pivot(index="step", columns="stream", values="count")


SETUPS: dict[str, dict[str, Any]] = {
    "on top": {"mixing": ReplayRatio(0.3, additional=True)},
    "uneven": {"mixing": ReplayRatio(0.1, {"a": 3, "b": 1}), "batch_size": 7},
    "named in another order": {"buffer": {"streams": ["b", "a", "b"]}},
    "one stream of two, in turn": {"buffer": {"streams": ["b"], "retrieval": InTurn()}},
    "by hand": {"mixing": [0.4, 0.3, 0.3]},
    "at random": {"drawing": "multinomial"},
    "contents, by epochs": {"args": {"max_steps": -1, "num_train_epochs": 1}, "buffer": {"storage": "memory"}},
}


def simulate(capacity: int, key: int, names: list[str], batches: list[list[tuple[str, int]]]) -> list[list[Any]]:
    """The textbook reservoir of what comes for the first time, with the same random numbers; before each step."""
    random, kept, number, before, seen = RandomNumbers(key), [], 0, [], set[Any]()
    for batch in batches:
        before.append(list(kept))
        for sample in [sample for name in names for sample in batch if sample[0] == name]:
            if sample in seen:
                continue
            seen.add(sample)
            place = int(random.integers(np.array([number]), np.array([number + 1]))[0])
            if number < capacity:
                kept.append(sample)
            elif place < capacity:
                kept[place] = sample
            number += 1
    return [*before, kept]


@pytest.mark.parametrize("name", SETUPS)
def test_the_buffer_holds_what_a_textbook_reservoir_of_the_trained_samples_holds(name: str, tmp_path: Path) -> None:
    changes = {"args": {"max_steps": 8}, **SETUPS[name]}
    options = {"capacity": 25, "seed": 11, **changes.pop("buffer", {})}
    buffer, watch, streams = ReplayBuffer(**options), Watch(), two()
    trainer = train(tmp_path, {**streams, "memory": buffer}, watch, **changes)
    names = list(dict.fromkeys(options.get("streams") or streams))
    expected = simulate(25, 11, names, watch.offered)

    def samples(where: list[int]) -> list[Any]:
        return [(buffer.sources.names[address >> 40], address % 2**40) for address in where]

    assert samples(buffer._entries["address"].tolist()) == expected[-1]
    for held, drawn, content in zip(watch.held, watch.drawn, expected, strict=False):
        assert len(held["memory"]) == len(content)
        if options.get("storage") != "memory":
            assert samples(held["memory"]) == content
        assert Counter(drawn.get("memory", [])) <= Counter(held["memory"])
    for plan, drawn, rows in zip(watch.plans, watch.drawn, watch.rows, strict=True):
        for position, ids in [(position, ids) for stream_id, position, ids in rows if stream_id == 2]:
            ((source, index),) = samples([drawn["memory"][position - plan.starts[2]]])
            assert options.get("storage") == "memory" or torch.equal(ids, streams[source][index]["input_ids"])
    assert buffer.num_offered == sum(sample[0] in names for offered in watch.offered for sample in offered)
    assert buffer.num_drawn == trainer.mixing.seen[2] == sum(len(drawn.get("memory", [])) for drawn in watch.drawn)
    sizes = [entry["memory_size/memory"] for entry in trainer.state.log_history if "memory_size/memory" in entry]
    assert sizes == [len(content) for content in expected[1:]]
    assert counts_of(trainer)["memory"].sum() == buffer.num_drawn > 0


def test_a_run_ends_with_its_streams_though_the_memory_could_go_on(tmp_path: Path) -> None:
    ends = [Stream("a", two()["a"], max_epochs=1), Stream("b", two()["b"], max_epochs=2)]
    streams, policy = [*ends, Stream("memory", ReplayBuffer(30))], ReplayRatio(0.4, "Uniform", additional=True)
    trainer = train(tmp_path, streams, mixing=policy, args={"max_steps": 500})
    assert trainer.mixing.seen[:2].tolist() == [37, 46]
    assert trainer.state.global_step < 20


@pytest.mark.parametrize(
    ("streams", "changes", "message"),
    [
        (lambda _: {"memory": ReplayBuffer(5)}, {}, "replay buffers"),
        (lambda _: {**two(), "m": Stream("m", ReplayBuffer(5), max_epochs=1)}, {}, "max_epochs"),
        (lambda _: {**two(), "memory": ReplayBuffer(5)}, {"mixing": Proportional()}, "ReplayRatio"),
        (lambda _: {**two(), "memory": ReplayBuffer(5)}, {"mixing": None}, "ReplayRatio"),
        (lambda _: {**two(), "memory": ReplayBuffer(5, streams=["c"])}, {}, "'c'"),
    ],
)
def test_what_cannot_be_is_told_at_once(streams: Any, changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path, streams(tmp_path / "rows"), **changes)


@pytest.mark.parametrize(
    ("streams", "option"),
    [
        (lambda _: {"m": ReplayBuffer(5, streams=["n"]), "n": ReplayBuffer(5)}, "streams"),
        (lambda _: dict.fromkeys("mn", ReplayBuffer(5)), "train_dataset"),
        (lambda own: {k: ReplayBuffer(5, storage=OnDisk(own)) for k in "mn"}, "storage"),
    ],
)
def test_buffers_that_do_not_go_together_are_named(streams: Any, option: str, tmp_path: Path) -> None:
    with refused(option, stream="m"):
        make(tmp_path, {**two(), **streams(tmp_path / "rows")})


DATA: dict[str, Any] = {
    "tokens": two,
    "columns": lambda: {"a": Columns(37, 1, length=8), "b": Columns(23, 2, length=8)},
    "some columns": lambda: {"a": Columns(37, 1, length=8), "b": two()["b"]},
    "arrow": lambda: {"a": arrow(37, 1), "b": arrow(23, 2)},
    "arrow and others": lambda: {"a": arrow(37, 1), "b": [dict(row) for row in arrow(23, 2)]},
}


def test_storages_and_kinds_of_data_train_the_same_model_to_the_bit(tmp_path: Path) -> None:
    kinds = [(kind, "references") for kind in DATA]
    ends = []
    for kind, storage in [*kinds, ("tokens", "memory"), ("some columns", "memory"), ("columns", "disk")]:
        folder = tmp_path / f"{kind} {storage}"
        buffer = ReplayBuffer(15, storage=STORAGES[storage](folder / "rows"), seed=0)
        options = {"mixing": ReplayRatio(0.4, "Uniform"), "args": {"max_steps": 5}}
        trainer = train(folder, {**DATA[kind](), "memory": buffer}, **options)
        ends.append((hexadecimal(trainer), snapshot(buffer)["entries"]["number"], counts_of(trainer).to_json()))
    assert all(end == ends[0] for end in ends)


@pytest.mark.parametrize("storage", STORAGES)
def test_a_random_transform_is_drawn_anew_from_a_reference_and_kept_in_contents(storage: str, tmp_path: Path) -> None:
    watch, buffer = Watch(), ReplayBuffer(200, storage=STORAGES[storage](tmp_path / "rows"), seed=0)
    train(tmp_path, {"a": Masked(40, 1, length=8), "memory": buffer}, watch, args={"max_steps": 5})
    rows = [(int(stream_id), tuple(ids.tolist())) for step in watch.rows for stream_id, _, ids in step]
    trained = {ids for stream_id, ids in rows if stream_id == 0}
    again = [ids in trained for stream_id, ids in rows if stream_id == 1]
    assert len(again) >= 10
    assert all(again) if storage != "references" else not all(again)


def test_a_buffer_filled_by_hand_is_replayed_and_not_fed(tmp_path: Path) -> None:
    buffer, watch = ReplayBuffer(10, storage="memory", is_online=False, seed=0), Watch()
    buffer.remember("old", arrow(30, 1))
    before = snapshot(buffer)["entries"]

    class Remember(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == 3:
                assert snapshot(buffer)["entries"] == before
                buffer.remember("other", Tokens(30, 3, length=8))

    streams = {"new": arrow(30, 2), "memory": buffer}
    train(tmp_path, streams, watch, callbacks=[Remember()], args={"max_steps": 6})
    assert all(plan.counts.tolist() == [7, 3] for plan in watch.plans)
    held = snapshot(buffer)["entries"]
    assert 2 in held["task"]  # what was remembered in the midst of the run
    assert watch.held[3]["memory"] != watch.held[2]["memory"]


EVALUATION = {"a": Tokens(4, 8, length=8), "b": Tokens(4, 9, length=8)}
FEATURES: dict[str, Any] = {
    "PiKE": lambda: {"mixing": ReplayRatio(0.3, PiKE(interval_steps=2))},
    "a schedule": lambda: {"batch_size": schedules.LossChange(initial=8, minimum=4, maximum=16)},
    "groups by length": lambda: {"args": {"train_sampling_strategy": "group_by_length"}},
    "tokens": lambda: {"max_tokens_per_micro_batch": 30},
    "evaluation": lambda: {"eval_dataset": EVALUATION, "args": {"eval_strategy": "steps", "eval_steps": 3}},
    "accumulation": lambda: {"batch_size": None, "args": {"gradient_accumulation_steps": 2}},
    "sequential": lambda: {"args": {"train_sampling_strategy": "sequential"}},
}


@pytest.mark.parametrize("name", FEATURES)
def test_a_memory_goes_along_with_whatever_else_a_mixture_does(name: str, tmp_path: Path) -> None:
    ends = []
    for storage in ("references", "memory"):
        changes, buffer = FEATURES[name](), ReplayBuffer(20, storage=storage, seed=0)
        changes["args"] = {"max_steps": 4, **changes.get("args", {})}
        trainer = train(tmp_path / storage, {**two(), "memory": buffer}, **changes)
        assert buffer.num_drawn > 0
        assert np.isfinite([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]).all()
        ends.append((hexadecimal(trainer), snapshot(buffer)))
    assert ends[0][0] == ends[1][0]


@pytest.mark.parametrize("buffer_seed", [None, 3])
def test_a_seed_set_after_construction_is_that_of_an_empty_buffer(buffer_seed: int | None, tmp_path: Path) -> None:
    found = []
    for at_construction in (1, 7):
        buffer = ReplayBuffer(8, seed=buffer_seed)
        args = {"max_steps": 3, "seed": at_construction}
        trainer = make(tmp_path / str(at_construction), {**two(), "old": buffer}, args=args)
        trainer.args.seed = 7
        trainer.train()
        found.append((buffer.key, [buffer[slot]["input_ids"].tolist() for slot in range(len(buffer))]))
    assert found[0] == found[1]
