"""Memories on two ranks: the same buffer on both, and the one that a single rank would have."""

from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch

from mixer import LossChange, MixingTrainer, Stream
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import Tokens, build_model
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched, on_ranks, some
from tests.replay.buffers import STORAGES, Classes, InTurn, Masked, Watch, arrow, hexadecimal, make, memory_of, snapshot
from tests.replay.test_feeding import _rows

RUNS: dict[str, dict[str, Any]] = {
    "references": {},
    "on top": {"mixing": lambda: ReplayRatio(0.3, "Uniform", additional=True)},
    "adaptive": {"mixing": lambda: ReplayRatio(0.3, LossChange(num_warmup_observations=1))},
    "memory": {"storage": "memory", "streams": lambda: {"a": Masked(37, 1, length=8), "b": Tokens(23, 2, length=8)}},
    "disk": {"storage": "disk", "retrieval": InTurn()},
    "column": {"selection": "ClassBalanced", "streams": lambda: {"a": labelled(1), "b": labelled(2)}},
    "batches": {"selection": "ClassBalanced", "is_classifier": True},
    "losses": {"selection": "LossAware", "is_classifier": True},
    "small": {"options": {"batch_size": 3}, "mixing": lambda: ReplayRatio(0.34, "Uniform")},
}


def labelled(seed: int) -> datasets.Dataset:
    """Tokens to predict, with a class beside them that the model does not take."""
    data = arrow(40, seed)
    return data.add_column("domain", [number % (3 + seed) // 2 for number in range(40)])


def build(folder: Path, name: str, watch: Watch | None = None, **changes: Any) -> MixingTrainer:
    run = {**RUNS[name], **changes}
    storage = STORAGES[run.get("storage", "references")](folder / "rows")
    rules = (run.get("selection", "Reservoir"), storage, run.get("retrieval", "Uniform"))
    buffer = ReplayBuffer(14, *rules, label_column="domain" if name == "column" else None)
    streams: dict[str, Any] = {name: Tokens(37 - 7 * k, k, length=8) for k, name in enumerate("ab")}
    if run.get("is_classifier"):
        streams = {"a": Classes(37, 1), "b": Classes(23, 2)}
    elif "streams" in run:
        streams = run["streams"]()
    args = {"save_strategy": "steps", "save_steps": 4, "per_device_train_batch_size": 3, "max_steps": 9}
    return make(
        folder,
        {**streams, "memory": buffer},
        watch,
        model=build_model("llama-classifier" if run.get("is_classifier") else "llama"),
        mixing=run["mixing"]() if "mixing" in run else ReplayRatio(0.3, "Uniform"),
        args=args,
        epoch_size=400,
        **run.get("options", {}),
    )


def rows_of(watch: Watch) -> list[list[Any]]:
    """This rank's rows of each step: their streams and tokens."""

    def rows(micro: Any) -> list[Any]:
        return list(zip(micro["stream_ids"].tolist(), map(tuple, micro["input_ids"].tolist()), strict=True))

    return [[row for micro in micros for row in rows(micro)] for micros in watch.inputs]


def train(trainer: MixingTrainer, watch: Watch, checkpoint: Path | None = None) -> dict[str, Any]:
    trainer.train(resume_from_checkpoint=checkpoint and str(checkpoint))
    buffer = memory_of(trainer)
    rows = trainer.ledger.to_pandas() if trainer.is_world_process_zero() else None
    return {
        "buffer": snapshot(buffer),
        "held": [tuple(torch.as_tensor(buffer[slot]["input_ids"]).tolist()) for slot in range(len(buffer))],
        "rows": rows_of(watch),
        "counts": [plan.counts.tolist() for plan in watch.plans],
        "weights": hexadecimal(trainer),
        "bytes": buffer.num_gathered_bytes,
        "ledger": rows if rows is None else rows[["step", "stream", "count", "seen"]],
    }


def run(name: str, folder: Path) -> dict[str, Any]:
    return train(build(folder / name, name, watch := Watch()), watch)


def go_on(folder: Path) -> dict[str, Any]:
    """Runs that another number of ranks began go on from their fourth step."""
    return {
        name: train(build(folder / name, name, watch := Watch()), watch, folder / name / "checkpoint-4")
        for name in (folder / "names").read_text().split(",")
    }


def iterables(folder: Path) -> list[dict[str, Any]]:
    """Rows of iterable streams, each rank with rows of its own; the whole run, and one that goes on."""
    ends, place = [], folder / "iterables"
    for checkpoint in (None, place / "checkpoint-4"):
        buffer = ReplayBuffer(14, storage=STORAGES["disk"](place / "rows"))
        rows = datasets.IterableDataset.from_generator(_shards, gen_kwargs={"firsts": [1, 2, 3, 4]})
        streams = [Stream("rows", rows.with_format("torch")), Stream("map", Tokens(30, 1, length=5))]
        args = {"per_device_train_batch_size": 3, "save_strategy": "steps", "save_steps": 4, "max_steps": 10}
        mixing, memory = ReplayRatio(0.3, "Uniform"), Stream("memory", buffer)
        trainer = make(place, [*streams, memory], watch := Watch(), args=args, mixing=mixing)
        ends.append(train(trainer, watch, checkpoint))
    return ends


def _shards(firsts: list[int]) -> Any:
    for first in firsts:
        yield from _rows(40, first)


def failures(folder: Path) -> list[str]:
    """What each rank says where one of them fails to take in what both were trained on."""
    messages = []
    for number, args in enumerate(({"save_strategy": "steps", "save_steps": 1}, {"max_steps": 1})):
        streams = {"a": Tokens(30, 1, length=8), "memory": (buffer := ReplayBuffer(100, storage="memory"))}
        trainer = make(folder / f"failing-{number}", streams, args={"max_steps": 6, **args})
        feeding: Any = buffer.feeding

        def failing(batch: Any, close: Any = feeding.close, step: int = 1 if "max_steps" in args else 3) -> None:
            if batch.plan.step == step and torch.distributed.get_rank() == 1:
                raise OSError("disk on fire")
            close(batch)

        feeding.close = failing
        messages.append(message_of(trainer.train))
    assert not (folder / "failing-0" / "checkpoint-3").exists()
    named = {"a": Tokens(30, 1), "memory": ReplayBuffer(9, "ClassBalanced")}
    return [*messages, message_of(make(folder / "failing", named).train)]


# Losses of the model differ in their last digits where batches are cut otherwise, so that near ties may differ.
OF_THE_MODEL = ("losses", "adaptive")
FEW = ("references", "disk")
results = launched(
    *(*(partial(run, name) for name in FEW), failures),
    rare=[*(partial(run, name) for name in RUNS if name not in FEW), iterables],
)
PARTS = ("buffer", "held", "counts", "weights")


def union(ends: Iterable[dict[str, Any]]) -> list[Any]:
    return [sorted(row for rows in ranks for row in rows) for ranks in zip(*(end["rows"] for end in ends), strict=True)]


@pytest.mark.parametrize("name", some(RUNS, FEW))
def test_all_ranks_hold_the_same_buffer_and_see_the_batches_of_one_rank(name, results, tmp_path) -> None:
    ends, alone = [result[name] for result in results], run(name, tmp_path)
    for part in PARTS:
        assert ends[0][part] == ends[1][part], part
    assert ends[0]["buffer"]["counts"][2] > 0
    assert all(end["bytes"] == 0 for end in ends), "what is known on every rank is not sent"
    if name in OF_THE_MODEL:
        assert union(ends)[:2] == union([alone])[:2]
        assert len({*ends[0]["held"]} & {*alone["held"]}) >= len({*alone["held"]}) - 4
        return
    for part in ("buffer", "held", "counts"):
        assert ends[0][part] == alone[part], part
    assert union(ends) == union([alone])


@pytest.mark.full
def test_rows_that_one_rank_had_are_in_the_buffer_of_both(results: Results) -> None:
    ends = [result["iterables"] for result in results]
    assert all(end["bytes"] > 0 for both in ends for end in both)
    for first, second in zip(*ends, strict=True):
        assert all(first[part] == second[part] for part in PARTS)
    whole, resumed = ends[0]
    assert all(whole[part] == resumed[part] for part in ("buffer", "held", "weights"))
    trained: set[tuple[int, ...]] = set()
    replayed = 0
    for rows in union(end[0] for end in ends):
        assert all(stream_id < 2 or row in trained for stream_id, row in rows)
        replayed += sum(stream_id == 2 for stream_id, _ in rows)
        trained |= {row for stream_id, row in rows if stream_id < 2}
    assert replayed > 10
    # Both ranks' rows are remembered: those of the first shards come to the first rank.
    own = [{row for rows in end[0]["rows"] for stream_id, row in rows if stream_id == 0} for end in ends]
    assert own[0].isdisjoint(own[1])
    assert all({*whole["held"]} & of_rank for of_rank in own)


def test_an_error_on_one_rank_ends_both_before_anything_is_saved(results: Results) -> None:
    for rank, result in enumerate(results):
        *failing, unlabelled = result["failures"]
        assert failing == [("RemoteError: rank 1 failed: ", "")[rank] + "OSError: disk on fire"] * 2
        assert unlabelled.startswith("InvalidValueError: Stream 'memory': selection=ClassBalanced needs the 'label'")


@pytest.mark.parametrize("world_size", [1, pytest.param(2, marks=pytest.mark.full)])
def test_a_run_goes_on_exactly_on_another_number_of_ranks(world_size: int, results: Results, tmp_path: Path) -> None:
    names = ("disk",) if world_size == 1 else ("references", "on top")
    whole = {name: run(name, tmp_path / "whole") for name in names}
    begun = results[0]["folder"] if world_size == 1 else tmp_path / "whole"
    (begun / "names").write_text(",".join(names))
    ends = [go_on(begun)] if world_size == 1 else [result["go_on"] for result in on_ranks(begun, go_on)]
    for name in names:
        own = [end[name] for end in ends]
        assert all(end["buffer"] == whole[name]["buffer"] and end["held"] == whole[name]["held"] for end in own)
        assert union(own) == union([whole[name]])[4:]
        assert own[0]["ledger"].equals(whole[name]["ledger"])
