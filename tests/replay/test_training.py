"""Whole runs with a memory: what is replayed, how much of it, and what it is."""

import functools
from collections import Counter
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
import torch

from mixer import MixingTrainer, PiKE, Proportional, Stream, schedules
from replay import OnDisk, ReplayBuffer, ReplayRatio
from replay.shared.random_numbers import RandomNumbers
from tests.helpers import MODEL_DATA, Tokens, arguments, build_model
from tests.replay.buffers import (
    STORAGES,
    Columns,
    Masked,
    Rows,
    Watch,
    arrow,
    hexadecimal,
    make,
    memory_of,
    snapshot,
    train,
)


def two(seed: int = 0) -> dict[str, Tokens]:
    return {"a": Tokens(37, 1 + seed, length=8), "b": Tokens(23, 2 + seed, length=8)}


# ---- Against a slow simulation ----

SETUPS: dict[str, dict[str, Any]] = {
    "share": {},
    "on top": {"mixing": ReplayRatio(0.3, additional=True)},
    "uneven": {"mixing": ReplayRatio(0.1, {"a": 3, "b": 1}), "batch_size": 7},
    "one stream of two": {"buffer": {"streams": ["b"]}},
    "named in another order": {"buffer": {"streams": ["b", "a", "b"]}},
    "in turn": {"buffer": {"retrieval": "LeastRecent"}},
    "by hand": {"mixing": [0.4, 0.3, 0.3]},
    "at random": {"drawing": "multinomial"},
    "by epochs": {"args": {"max_steps": -1, "num_train_epochs": 2}},
    "contents": {"buffer": {"storage": "memory"}},
}


def simulate(capacity: int, key: int, names: list[str], batches: list[list[tuple[str, int]]]) -> list[list[Any]]:
    """The textbook reservoir, sample by sample, with the same random numbers; its content before each step."""
    random, kept, number, before = RandomNumbers(key), [], 0, []
    for batch in batches:
        before.append(list(kept))
        for name in names:
            for sample in [sample for sample in batch if sample[0] == name]:
                place = int(random.integers(np.array([number]), np.array([number + 1]))[0])
                if number < capacity:
                    kept.append(sample)
                elif place < capacity:
                    kept[place] = sample
                number += 1
    return [*before, kept]


@pytest.mark.parametrize("name", SETUPS)
def test_the_buffer_holds_what_a_textbook_reservoir_of_the_trained_samples_holds(name: str, tmp_path: Path) -> None:
    changes = dict(SETUPS[name])
    options = {"capacity": 25, "seed": 11, **changes.pop("buffer", {})}
    buffer, watch, streams = ReplayBuffer(**options), Watch(), two()
    trainer = train(tmp_path, {**streams, "memory": buffer}, watch, **changes)
    names = list(dict.fromkeys(options.get("streams") or streams))
    expected = simulate(25, 11, names, watch.offered)

    def samples(where: list[int]) -> list[Any]:
        return [(buffer.sources.names[address >> 40], address % 2**40) for address in where]

    assert samples(buffer._entries["address"].tolist()) == expected[-1]
    num_offered = 0
    for step, (offered, drawn) in enumerate(zip(watch.offered, watch.drawn, strict=True)):
        assert len(watch.held[step]["memory"]) == min(25, num_offered) == len(expected[step])
        if options.get("storage") != "memory":
            assert samples(watch.held[step]["memory"]) == expected[step]
        found = drawn.get("memory", [])
        assert Counter(found) <= Counter(watch.held[step]["memory"])  # twice what came in twice, at the most
        num_offered += sum(sample[0] in names for sample in offered)
    assert buffer.num_offered == num_offered
    assert buffer.num_drawn == trainer.mixing.seen[2] == sum(len(drawn.get("memory", [])) for drawn in watch.drawn)
    rows = trainer.ledger.to_pandas()
    assert rows[rows["stream"] == "memory"]["coverage"].isna().all()
    assert rows.groupby("stream")["count"].sum()["memory"] == buffer.num_drawn > 0


@pytest.mark.parametrize("storage", STORAGES)
def test_what_is_trained_on_is_the_sample_that_the_entry_stands_for(storage: str, tmp_path: Path) -> None:
    streams, watch = two(), Watch()
    buffer = ReplayBuffer(12, storage=STORAGES[storage](tmp_path / "rows"), seed=1)
    sources: dict[int, Any] = {}
    place = buffer.rows.append

    def noting(rows: list[Any]) -> Any:
        numbers = place(rows)
        sources.update({number: row.sample for number, row in zip(numbers.tolist(), rows, strict=True)})
        return numbers

    buffer.rows.append = noting
    train(tmp_path, {**streams, "memory": buffer}, watch, args={"max_steps": 8})
    num_seen = 0
    for plan, drawn, micros in zip(watch.plans, watch.drawn, watch.inputs, strict=True):
        for micro in micros:
            for row, (stream_id, position) in enumerate(zip(micro["stream_ids"], micro["positions"], strict=True)):
                if stream_id == 2:
                    address = drawn["memory"][position - plan.starts[2]]
                    if storage == "references":
                        sample = streams["ab"[address >> 40]][address % 2**40]
                    else:
                        sample = sources[address]
                    assert torch.equal(micro["input_ids"][row], sample["input_ids"])
                    num_seen += 1
    assert num_seen == buffer.num_drawn >= 15


@pytest.mark.parametrize("additional", [False, True])
@pytest.mark.parametrize(("ratio", "batch_size"), [(0.1, 10), (0.25, 7), (0.5, 10), (0.07, 16)])
def test_the_part_of_the_mix_that_is_replayed_is_the_one_asked_for(
    ratio: float, batch_size: int, additional: bool, tmp_path: Path
) -> None:
    buffer = ReplayBuffer(100, seed=0)
    policy = ReplayRatio(ratio, additional=additional)
    args = {"max_steps": 25, "per_device_train_batch_size": 40}
    streams = {"a": Tokens(60, 1, length=4), "memory": buffer}
    trainer = train(tmp_path, streams, mixing=policy, batch_size=batch_size, args=args, epoch_size=1000)
    counts = trainer.ledger.to_pandas().pivot(index="step", columns="stream", values="count")
    assert counts["memory"].iloc[0] == 0
    new, replayed = counts["a"].iloc[1:].cumsum(), counts["memory"].iloc[1:].cumsum()
    assert (abs(replayed - ratio * (new + replayed)) <= 1 + 1e-9).all()
    assert ((counts["a"] == batch_size) if additional else (counts.sum(axis=1) == batch_size)).all()
    logs = [entry for entry in trainer.state.log_history if "memory_size/memory" in entry]
    assert [entry["memory_size/memory"] for entry in logs] == counts["a"].cumsum().clip(upper=100).tolist()


def test_a_small_buffer_gives_all_that_it_has_and_the_batch_stays_whole(tmp_path: Path) -> None:
    buffer = ReplayBuffer(3, seed=0)
    trainer = train(tmp_path, {**two(), "memory": buffer}, mixing=ReplayRatio(0.8))
    counts = trainer.ledger.to_pandas().pivot(index="step", columns="stream", values="count")
    assert counts["memory"].tolist() == [0] + [3] * 11
    assert (counts.sum(axis=1) == 10).all()


# ---- Several memories, and streams that come and go ----


def test_memories_share_by_weights_and_each_remembers_its_own_streams(tmp_path: Path) -> None:
    first = ReplayBuffer(20, streams=["a"], seed=1)
    second = ReplayBuffer(20, streams=["b"], storage="memory", seed=2)
    streams = {"a": two()["a"], "first": first, "b": two()["b"], "second": second}
    policy = ReplayRatio(0.5, shares={"first": 3, "second": 1})
    trainer = train(tmp_path, streams, mixing=policy, batch_size=16, args={"max_steps": 20}, epoch_size=1000)
    counts = trainer.ledger.to_pandas().pivot(index="step", columns="stream", values="count")
    assert first.num_samples_by_source == {"a": 20}
    assert second.num_samples_by_source == {"b": 20}
    late = counts.iloc[5:].cumsum()
    assert (abs(late["first"] - 6 * np.arange(1, 16)) <= 1).all()
    assert (abs(late["second"] - 2 * np.arange(1, 16)) <= 1).all()


def test_a_task_after_the_other_is_replayed_when_it_is_over(tmp_path: Path) -> None:
    buffer, watch = ReplayBuffer(40, seed=0), Watch()
    streams = [
        Stream("old", Tokens(30, 1, length=8), leaves_at=0.5),
        Stream("new", Tokens(30, 2, length=8), enters_at=0.5),
        Stream("memory", buffer),
    ]
    trainer = train(tmp_path, streams, watch, args={"max_steps": 20}, mixing=ReplayRatio(0.3, "Uniform"))
    counts = trainer.ledger.to_pandas().pivot(index="step", columns="stream", values="count")
    assert (counts["old"].iloc[10:] == 0).all()
    assert (counts["new"].iloc[:10] == 0).all()
    assert (counts.sum(axis=1) == 10).all()
    assert abs(counts["memory"].iloc[12:].sum() - 24) <= 1
    late = {address >> 40 for drawn in watch.drawn[15:] for address in drawn["memory"]}
    assert late == {0, 1}
    assert set(buffer.num_samples_by_source) == {"old", "new"}
    assert min(buffer.num_samples_by_source.values()) >= 10


@pytest.mark.parametrize("additional", [False, True])
def test_a_run_ends_with_its_streams_though_the_memory_could_go_on(additional: bool, tmp_path: Path) -> None:
    streams = [
        Stream("a", two()["a"], max_epochs=1),
        Stream("b", two()["b"], max_epochs=2),
        Stream("memory", ReplayBuffer(30)),
    ]
    trainer = train(
        tmp_path, streams, mixing=ReplayRatio(0.4, "Uniform", additional=additional), args={"max_steps": 500}
    )
    seen = dict(zip(trainer.mixing.names, trainer.mixing.seen.tolist(), strict=True))
    assert (seen["a"], seen["b"]) == (37, 46)
    assert trainer.state.global_step < 20
    assert seen["memory"] > 0


def test_a_memory_may_stand_anywhere_and_wait_for_its_turn(tmp_path: Path) -> None:
    buffer = ReplayBuffer(20, seed=0)
    streams = [Stream("memory", buffer, enters_at=0.5), *(Stream(name, data) for name, data in two().items())]
    trainer = train(tmp_path, streams, mixing=ReplayRatio(0.3, "Uniform"))
    counts = trainer.ledger.to_pandas().pivot(index="step", columns="stream", values="count")["memory"]
    assert (counts.iloc[:6] == 0).all()
    assert (counts.iloc[7:] == 3).all()
    assert buffer.sources.names == ("a", "b")


# ---- What is refused ----


@pytest.mark.parametrize(
    ("streams", "changes", "message"),
    [
        (lambda: {"memory": ReplayBuffer(5)}, {}, "replay buffers, which hold samples of other streams"),
        (lambda: ReplayBuffer(5), {}, "replay buffers, which hold samples of other streams"),
        (lambda: {**two(), "memory": Stream("memory", ReplayBuffer(5), max_epochs=1)}, {}, "max_epochs.*ReplayRatio"),
        (lambda: {**two(), "memory": ReplayBuffer(5)}, {"mixing": Proportional()}, r"ReplayRatio\(0.1"),
        (lambda: {**two(), "memory": ReplayBuffer(5)}, {"mixing": None}, r"ReplayRatio\(0.1"),
        (two, {}, "none of the streams .* is a ReplayBuffer"),
        (lambda: {**two(), "memory": ReplayBuffer(5, streams=["c"])}, {}, "there is no stream 'c'"),
        (lambda: {**two(), "m": ReplayBuffer(5, streams=["n"]), "n": ReplayBuffer(5)}, {}, "which is a buffer itself"),
    ],
)
def test_what_cannot_be_says_why_at_construction(
    streams: Any, changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=message):
        make(tmp_path, streams(), **changes)


def test_one_buffer_under_two_names_is_refused(tmp_path: Path) -> None:
    buffer = ReplayBuffer(5)
    with pytest.raises(ValueError, match="same buffer"):
        make(tmp_path, {**two(), "first": buffer, "second": buffer})


# ---- The same training, however it is kept and read ----


DATA: dict[str, Any] = {
    "tokens": two,
    "columns": lambda: {"a": Columns(37, 1, length=8), "b": Columns(23, 2, length=8)},
    "some columns": lambda: {"a": Columns(37, 1, length=8), "b": two()["b"]},
    "arrow": lambda: {"a": arrow(37, 1), "b": arrow(23, 2)},
    "arrow and others": lambda: {"a": arrow(37, 1), "b": Rows([dict(row) for row in arrow(23, 2)])},
    "ragged by a collator": two,
}


@pytest.mark.parametrize("kind", DATA)
def test_storages_train_the_same_model_to_the_bit(kind: str, tmp_path: Path) -> None:
    ends = []
    for storage, place in STORAGES.items():
        buffer = ReplayBuffer(15, storage=place(tmp_path / "rows"), seed=0)
        trainer = train(tmp_path / storage, {**DATA[kind](), "memory": buffer}, mixing=ReplayRatio(0.4, "Uniform"))
        ends.append((hexadecimal(trainer), snapshot(buffer), trainer.ledger.to_pandas().to_json()))
    assert ends[0] == ends[1] == ends[2]


def test_data_with_and_without_columns_train_the_same_model(tmp_path: Path) -> None:
    ends = {
        kind: hexadecimal(train(tmp_path / kind, {**DATA[kind](), "memory": ReplayBuffer(15, seed=0)}))
        for kind in ("tokens", "columns", "some columns", "arrow", "arrow and others")
    }
    assert len(set(ends.values())) == 1, ends


def test_a_random_transform_is_drawn_anew_from_a_reference_and_kept_in_contents(tmp_path: Path) -> None:
    for storage in STORAGES:
        streams, watch = {"a": Masked(40, 1, length=8)}, Watch()
        buffer = ReplayBuffer(200, storage=STORAGES[storage](tmp_path / "rows"), seed=0)
        train(tmp_path / storage, {**streams, "memory": buffer}, watch, args={"max_steps": 6})
        trained = {
            tuple(row.tolist())
            for micros in watch.inputs
            for micro in micros
            for row, stream in zip(micro["input_ids"], micro["stream_ids"], strict=True)
            if stream == 0
        }
        again = [
            tuple(row.tolist()) in trained
            for micros in watch.inputs
            for micro in micros
            for row, stream in zip(micro["input_ids"], micro["stream_ids"], strict=True)
            if stream == 1
        ]
        assert len(again) >= 12
        assert all(again) if storage != "references" else not all(again)


@pytest.mark.parametrize("name", ["bert-classifier", "bert-tokens", "gpt2", "bert-regression", "llama-classifier"])
def test_models_of_other_tasks_replay_too(name: str, tmp_path: Path) -> None:
    streams = {"a": Tokens(20, 1, MODEL_DATA[name], 8), "b": Tokens(20, 2, MODEL_DATA[name], 8)}
    hashes = set()
    for storage in ("references", "memory"):
        buffer = ReplayBuffer(10, storage=storage, seed=0)
        changes = {"args": {"max_steps": 5}, "model": build_model(name)}
        hashes.add(hexadecimal(train(tmp_path / storage, {**streams, "memory": buffer}, **changes)))
    assert len(hashes) == 1


# ---- One run after the other ----


@pytest.mark.parametrize("kind", ["tokens", "arrow"])
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("way", ["handed on", "saved"])
def test_what_the_first_run_saw_is_replayed_in_the_second(way: str, storage: str, kind: str, tmp_path: Path) -> None:
    old, new = DATA[kind]()["a"], DATA[kind]()["b"]
    place = STORAGES[storage](tmp_path / "rows")
    buffer = ReplayBuffer(30, storage=place, seed=0)
    first = train(tmp_path / "first", {"old": old, "memory": buffer}, args={"max_steps": 6})
    assert buffer.num_samples_by_source == {"old": 30}
    drawn = buffer.num_drawn
    if way == "saved":
        buffer.save(tmp_path / "saved")
        buffer = ReplayBuffer(30, storage=STORAGES[storage](tmp_path / "other"), seed=5)
        buffer.load(tmp_path / "saved")
        if storage == "references":
            buffer.remember("old", old, [])
    watch = Watch()
    streams = {"memory": buffer, "new": new}  # its rows are the first of a micro-batch
    second = train(tmp_path / "second", streams, watch, args={"max_steps": 6}, model=first.model)
    assert watch.plans[0].counts.tolist() == [3, 7]
    assert watch.plans[0].starts.tolist() == [drawn, 0]
    assert buffer.sources.names == ("old", "new")
    counts = buffer.num_samples_by_source
    assert counts["old"] > 5
    assert counts["new"] > 5
    assert second.mixing.seen.tolist() == [sum(plan.counts[k] for plan in watch.plans) for k in (0, 1)]
    # The other way of handing on gives the very same run.
    (tmp_path / "hash").parent.mkdir(exist_ok=True)
    test_what_the_first_run_saw_is_replayed_in_the_second.ends.setdefault(kind, set()).add(hexadecimal(second))
    assert len(test_what_the_first_run_saw_is_replayed_in_the_second.ends[kind]) == 1


test_what_the_first_run_saw_is_replayed_in_the_second.ends = {}


def test_a_buffer_filled_by_hand_is_replayed_and_not_fed(tmp_path: Path) -> None:
    old, buffer, watch = arrow(30, 1), ReplayBuffer(10, storage="memory", is_online=False, seed=0), Watch()
    buffer.remember("old", old)
    before = snapshot(buffer)["entries"]
    train(tmp_path, {"new": arrow(30, 2), "memory": buffer}, watch)
    assert snapshot(buffer)["entries"] == before
    assert all(plan.counts.tolist() == [7, 3] for plan in watch.plans)


def test_samples_remembered_in_the_midst_of_a_run_are_replayed(tmp_path: Path) -> None:
    from transformers import TrainerCallback

    buffer, watch = ReplayBuffer(10, is_online=False, seed=0), Watch()

    class Remember(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in (2, 5):
                buffer.remember(f"other-{state.global_step}", Tokens(10, state.global_step, length=8))

    trainer = train(tmp_path, {"new": Tokens(30, 9, length=8), "memory": buffer}, watch, callbacks=[Remember()])
    assert trainer.state.global_step == 12
    assert {address >> 40 for drawn in watch.drawn[6:] for address in drawn["memory"]} >= {2}


def test_a_buffer_that_is_loaded_after_the_trainer_was_made_keeps_its_sources_apart(tmp_path: Path) -> None:
    streams = {"b": two()["b"], "a": two()["a"]}
    first = ReplayBuffer(20, seed=0)
    for name in ("a", "b"):
        first.remember(name, streams[name], range(5))
    first.save(tmp_path / "saved")
    buffer, watch = ReplayBuffer(20, seed=0), Watch()
    trainer = make(tmp_path, {**streams, "memory": buffer}, watch, args={"max_steps": 4})
    buffer.load(tmp_path / "saved")
    trainer.train()
    trained = {sample for offered in watch.offered for sample in offered}
    trained |= {(name, index) for name in ("a", "b") for index in range(5)}
    held = {(buffer.sources.names[w >> 40], w % 2**40) for w in buffer._entries["address"].tolist()}
    assert held <= trained


# ---- Beside the other features of a mixture ----

FEATURES: dict[str, Any] = {
    "PiKE": lambda: {"mixing": ReplayRatio(0.3, PiKE(interval_steps=2))},
    "PiKE over all": lambda: {"mixing": PiKE(interval_steps=2)},
    "a schedule": lambda: {"batch_size": schedules.LossChange(initial=8, minimum=4, maximum=16)},
    "a ramp": lambda: {"batch_size": lambda step, size: 6 + step},
    "groups by length": lambda: {"args": {"train_sampling_strategy": "group_by_length"}},
    "tokens": lambda: {"max_tokens_per_micro_batch": 30},
    "memory recovery": lambda: {"args": {"auto_find_batch_size": True}},
    "evaluation": lambda: {
        "eval_dataset": {"a": Tokens(4, 8, length=8), "b": Tokens(4, 9, length=8)},
        "args": {"eval_strategy": "steps", "eval_steps": 3},
    },
    "accumulation": lambda: {"batch_size": None, "args": {"gradient_accumulation_steps": 2}},
    "sequential": lambda: {"args": {"train_sampling_strategy": "sequential"}},
}


@pytest.mark.parametrize("name", FEATURES)
def test_a_memory_goes_along_with_whatever_else_a_mixture_does(name: str, tmp_path: Path) -> None:
    ends = []
    for storage in ("references", "memory"):
        changes, watch = FEATURES[name](), Watch()
        buffer = ReplayBuffer(20, storage=storage, seed=0)
        trainer = train(tmp_path / storage, {**two(), "memory": buffer}, watch, **changes)
        assert buffer.num_drawn > 0
        assert np.isfinite([entry["loss"] for entry in trainer.state.log_history if "loss" in entry]).all()
        ends.append((hexadecimal(trainer), snapshot(buffer), buffer.num_samples_by_source))
    assert ends[0] == ends[1]


def test_weights_of_losses_apply_to_a_memory_and_its_micro_batches_are_its_own(tmp_path: Path) -> None:
    from mixer import Decision, Policy

    class Weighing(Policy):
        is_static = True

        def start(self, mixture: Any) -> Decision:
            return Decision(np.array([0.4, 0.3, 0.3]), loss_weights=np.array([1.0, 0.5, 0.0]))

        def update(self, observation: Any) -> Decision:
            raise AssertionError

    watch = Watch()
    buffer = ReplayBuffer(20, seed=0)
    train(tmp_path, {**two(), "memory": buffer}, watch, mixing=Weighing())
    assert all(len(set(micro["stream_ids"].tolist())) == 1 for micros in watch.inputs for micro in micros)
    assert buffer.num_drawn > 0


def test_a_step_that_runs_out_of_memory_is_offered_once(tmp_path: Path) -> None:
    from mixer.loading.memory import is_out_of_memory

    found = []
    for fails in (False, True):
        buffer, watch = ReplayBuffer(20, "Surprise", storage="memory", seed=0), Watch()
        trainer = make(tmp_path / str(fails), {**two(), "memory": buffer}, watch, args={"auto_find_batch_size": True})
        forward, calls = trainer.model.forward, []

        @functools.wraps(forward)
        def failing(*args: Any, fails: bool = fails, forward: Any = forward, calls: Any = calls, **kwargs: Any) -> Any:
            calls.append(1)
            if fails and len(calls) == 6:
                error = torch.OutOfMemoryError("CUDA out of memory")
                assert is_out_of_memory(error)
                raise error
            return forward(*args, **kwargs)

        trainer.model.forward = failing
        trainer.train()
        assert buffer.num_offered == sum(map(len, watch.offered))
        found.append([sorted(buffer.entries["number"].tolist()), buffer.num_offered])
    assert found[0][1] == found[1][1]


def test_reports_and_comparisons_know_runs_with_a_memory(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from mixer.cli.entry import main

    for name in ("one", "two"):
        evaluation = {"a": Tokens(4, 8, length=8), "b": Tokens(4, 9, length=8)}
        args = {"eval_strategy": "steps", "eval_steps": 4}
        train(tmp_path / name, {**two(), "memory": ReplayBuffer(20)}, eval_dataset=evaluation, args=args)
    main(["compare", str(tmp_path / "one"), str(tmp_path / "two")])
    assert "worst" in capsys.readouterr().out
    main(["report", str(tmp_path / "one"), str(tmp_path / "two"), "--output", str(tmp_path / "page.html")])
    assert "memory" in (tmp_path / "page.html").read_text()


def test_a_trainer_that_trains_twice_goes_on_with_its_memory(tmp_path: Path) -> None:
    buffer = ReplayBuffer(20, seed=0)
    trainer = train(tmp_path, {**two(), "memory": buffer}, args={"max_steps": 4})
    offered, drawn = buffer.num_offered, buffer.num_drawn
    trainer.train()
    assert buffer.num_offered > offered
    assert buffer.num_drawn >= 2 * drawn
    assert trainer.mixing.seen[2] == buffer.num_drawn - drawn


def test_a_subclassed_trainer_and_a_dataset_dict_take_memories(tmp_path: Path) -> None:
    streams = {**datasets.DatasetDict({"x": arrow(20, 1), "y": arrow(20, 2)}), "memory": ReplayBuffer(10)}
    trainer = MixingTrainer(
        build_model("llama"),
        arguments(tmp_path, max_steps=4),
        train_dataset=streams,
        mixing="ReplayRatio",
    )
    trainer.train()
    assert trainer.mixing.seen[2] == memory_of(trainer).num_drawn > 0


def test_two_buffers_in_one_folder_are_refused(tmp_path: Path) -> None:
    first, second = (ReplayBuffer(5, storage=OnDisk(tmp_path / "rows")) for _ in range(2))
    with pytest.raises(ValueError, match=r"The buffers \['m', 'n'\] have the same folder"):
        make(tmp_path / "run", {**two(), "m": first, "n": second})


@pytest.mark.parametrize("buffer_seed", [None, 3])
def test_a_seed_set_after_construction_is_that_of_an_empty_buffer(buffer_seed: int | None, tmp_path: Path) -> None:
    def trained(folder: str, at_construction: int, later: int | None = None) -> ReplayBuffer:
        buffer = ReplayBuffer(8, seed=buffer_seed)
        args = arguments(tmp_path / folder, max_steps=4, seed=at_construction)
        mixing = ReplayRatio(0.3)
        trainer = MixingTrainer(build_model("llama"), args, train_dataset={**two(), "old": buffer}, mixing=mixing)
        if later is not None:
            trainer.args.seed = later
        trainer.train()
        return buffer

    late, early = trained("late", 1, 7), trained("early", 7)
    assert late.key == early.key
    assert [late[slot]["input_ids"].tolist() for slot in range(len(late))] == [
        early[slot]["input_ids"].tolist() for slot in range(len(early))
    ]
