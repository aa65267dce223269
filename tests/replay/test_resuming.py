"""Runs with a memory that are killed and go on are the runs that were never killed, to the bit."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, LlamaForSequenceClassification, TrainerCallback

from mixer import LossChange, MixingTrainer, Stream
from replay import ReplayBuffer, ReplayRatio
from replay.selection import Ring
from tests.helpers import Tokens, _llama_config
from tests.mixer.trainer.checkpointing.test_resume import Killed, assert_same, end_of
from tests.replay.buffers import STORAGES, Classes, Masked, arrow, make, memory_of, snapshot
from tests.replay.test_feeding import iterable

ADAPTIVE = {"mixing": lambda: ReplayRatio(0.3, LossChange(num_warmup_observations=1))}
RUNS: dict[str, dict[str, Any]] = {
    "references": {**ADAPTIVE},
    "memory": {"storage": "memory"},
    "disk": {"storage": "disk"},
    "in turn": {"retrieval": "LeastRecent", "storage": "disk"},
    "classes": {"selection": "ClassBalanced", "is_classifier": True, "storage": "memory"},
    "ring": {"selection": lambda: Ring(by=("task", "label")), "is_classifier": True},
    "losses": {"selection": "LossAware", "storage": "disk", **ADAPTIVE},
    "surprise": {"selection": "Surprise"},
    "on top": {"mixing": lambda: ReplayRatio(0.3, "Uniform", additional=True)},
    "workers": {"args": {"dataloader_num_workers": 2}, **ADAPTIVE},
    "random": {"streams": lambda: {"a": Masked(37, 1, length=8), "b": Tokens(23, 2, length=8)}, "storage": "memory"},
    "arrow": {"streams": lambda: {"a": arrow(37, 1), "b": arrow(23, 2)}},
    "rows": {"streams": lambda: {"a": iterable(200), "b": Tokens(23, 2, length=5)}, "storage": "disk"},
    "tasks": {
        "streams": lambda: {
            "a": Stream("a", Tokens(37, 1, length=8), leaves_at=0.4),
            "b": Stream("b", Tokens(23, 2, length=8), enters_at=0.4),
        },
        "storage": "disk",
        "mixing": lambda: ReplayRatio("tasks", "Uniform"),
    },
}


def build(folder: Path, name: str, callbacks: Any = (), **changes: Any) -> MixingTrainer:
    run = {**RUNS[name], **changes}
    torch.manual_seed(0)
    selection, storage = run.get("selection", "Reservoir"), run.get("storage", "references")
    buffer = ReplayBuffer(
        run.get("capacity", 14),
        selection() if callable(selection) else selection,
        STORAGES[storage](folder / "rows"),
        run.get("retrieval", "Uniform"),
    )
    if run.get("is_classifier"):
        streams: Any = {"a": Classes(37, 1), "b": Classes(23, 2)}
        model: Any = LlamaForSequenceClassification(_llama_config(num_labels=3, attention_dropout=0.2))
    else:
        streams = (
            run["streams"]() if "streams" in run else {n: Tokens(37 - 7 * k, k, length=8) for k, n in enumerate("ab")}
        )
        model = LlamaForCausalLM(_llama_config(attention_dropout=0.2))
    args = {"save_strategy": "steps", "save_steps": 3, "logging_steps": 2, "optim": "adamw_torch", "max_steps": 11}
    return make(
        folder,
        {**streams, "memory": buffer} if run.get("has_memory", True) else streams,
        model=model,
        mixing=run["mixing"]() if "mixing" in run else ReplayRatio(0.3, "Uniform"),
        callbacks=list(callbacks),
        args={**args, **run.get("args", {})},
        **run.get("options", {}),
    )


def end(trainer: MixingTrainer) -> dict[str, Any]:
    buffer = memory_of(trainer)
    held = [
        {key: torch.as_tensor(value).tolist() for key, value in buffer[slot].items() if key != "text"}
        for slot in range(len(buffer))
    ]
    return {**end_of(trainer), **snapshot(buffer), "held": held}


class KilledAt(TrainerCallback):
    def __init__(self, event: str, step: int):
        self.step = step
        setattr(self, event, self.kill)

    def kill(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            raise Killed


def killed(folder: Path, name: str, event: str, step: int) -> None:
    trainer = build(folder, name, [KilledAt(event, step)])
    with pytest.raises(Killed):
        trainer.train(resume_from_checkpoint=trainer.newest_checkpoint())
    if trainer._parts.run.loader is not None:
        trainer._parts.run.loader.stop()


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, Any]]:
    ends: dict[str, dict[str, Any]] = {}

    def run(name: str) -> dict[str, Any]:
        if name not in ends:
            trainer = build(tmp_path_factory.mktemp("whole"), name)
            trainer.train()
            assert memory_of(trainer).num_drawn > 0
            assert memory_of(trainer).num_kept > len(memory_of(trainer))
            ends[name] = end(trainer)
        return ends[name]

    return run


@pytest.mark.parametrize("name", RUNS)
def test_a_run_killed_again_and_again_ends_as_one_that_was_not(name: str, tmp_path: Path, expected: Any) -> None:
    if name in ("references", "disk", "workers"):
        killed(tmp_path, name, "on_step_end", 5)
    killed(tmp_path, name, "on_save", 6)
    killed(tmp_path, name, "on_step_begin", 10)
    trainer = build(tmp_path, name)
    assert str(trainer.newest_checkpoint()).endswith("checkpoint-9")
    trainer.train(resume_from_checkpoint=trainer.newest_checkpoint())
    assert_same(end(trainer), expected(name))


@pytest.mark.parametrize(("name", "step"), [("references", 9), ("disk", 3), ("disk", 6), ("classes", 3)])
def test_a_finished_run_goes_on_from_any_of_its_checkpoints(
    name: str, step: int, tmp_path: Path, expected: Any
) -> None:
    build(tmp_path, name).train()
    if name == "disk":  # somewhere else, with nothing but the checkpoint
        shutil.rmtree(tmp_path / "rows")
    trainer = build(tmp_path, name)
    trainer.train(resume_from_checkpoint=str(tmp_path / f"checkpoint-{step}"))
    assert_same(end(trainer), expected(name))


def test_workers_may_be_others_after_the_kill(tmp_path: Path, expected: Any) -> None:
    killed(tmp_path, "workers", "on_step_end", 8)
    trainer = build(tmp_path, "workers", args={})
    trainer.train(resume_from_checkpoint=True)
    found = end(trainer)
    assert_same(found, expected("workers"))


def test_a_disk_is_tidied_up_as_rows_leave(tmp_path: Path) -> None:
    trainer = build(tmp_path, "disk", args={"max_steps": 40, "save_steps": 20}, capacity=6)
    trainer.train()
    buffer = memory_of(trainer)
    assert buffer.num_kept > 20
    on_disk = {path.name for path in (tmp_path / "rows").iterdir()}
    assert len(on_disk) <= 8, on_disk


# ---- What does not fit ----


def _saved(tmp_path: Path, name: str = "references", **changes: Any) -> str:
    build(tmp_path, name, **changes).train()
    return str(tmp_path / "checkpoint-6")


def test_a_buffer_that_is_not_in_the_checkpoint_is_missed_unless_told_otherwise(tmp_path: Path) -> None:
    checkpoint = Path(_saved(tmp_path))
    shutil.rmtree(checkpoint / "methods")
    marker = checkpoint / "complete.json"
    files = json.loads(marker.read_text())["files"]
    kept = {path: size for path, size in files.items() if not path.startswith("methods")}
    marker.write_text(json.dumps({"format": 1, "files": kept}))  # as older versions wrote it, without digests
    with pytest.raises(ValueError, match=r"Stream 'memory': .*memory is missing.*allow_inexact=True"):
        build(tmp_path, "references").train(resume_from_checkpoint=str(checkpoint))
    trainer = build(tmp_path, "references", options={"allow_inexact": True})
    trainer.train(resume_from_checkpoint=str(checkpoint))
    assert trainer.state.global_step == 11
    assert memory_of(trainer).num_offered == sum(trainer.mixing.seen[:2]) - sum(_seen(trainer, 6))


def _seen(trainer: MixingTrainer, step: int) -> list[int]:
    rows = trainer.ledger.to_pandas()
    return rows[(rows["step"] == step) & (rows["stream"] != "memory")]["seen"].tolist()


def test_a_checkpoint_from_before_the_memory_is_refused_unless_told_otherwise(tmp_path: Path) -> None:
    build(tmp_path, "references", has_memory=False, mixing=lambda: "Uniform").train()
    checkpoint = str(tmp_path / "checkpoint-6")
    with pytest.raises(ValueError, match=r"'memory'.*not in the checkpoint.*allow_inexact=True"):
        build(tmp_path, "references").train(resume_from_checkpoint=checkpoint)
    trainer = build(tmp_path, "references", options={"allow_inexact": True})
    trainer.train(resume_from_checkpoint=checkpoint)
    assert memory_of(trainer).num_drawn > 0


def test_a_memory_that_is_gone_is_missed_unless_told_otherwise(tmp_path: Path) -> None:
    checkpoint = _saved(tmp_path)
    options = {"has_memory": False, "mixing": lambda: "Uniform"}
    with pytest.raises(ValueError, match=r"Cannot resume.*the policy was ReplayRatio|the streams were"):
        build(tmp_path, "references", **options).train(resume_from_checkpoint=checkpoint)
    build(tmp_path, "references", **options, options={"allow_inexact": True}).train(resume_from_checkpoint=checkpoint)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"capacity": 15}, "Stream 'memory': the buffer was saved with capacity=14 and has capacity=15 now"),
        ({"selection": "Surprise"}, "saved with selection='Reservoir' and has selection='Surprise' now"),
        ({"storage": "memory"}, "saved with keeps_contents=False and has keeps_contents=True now"),
        (
            {"streams": lambda: {"a": Tokens(37, 9, length=8), "b": Tokens(30, 1, length=8)}},
            "Source 'a' has changed",
        ),
    ],
)
def test_another_buffer_or_other_data_are_refused_unless_told_otherwise(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    checkpoint = _saved(tmp_path)
    with pytest.raises(ValueError, match=message):
        build(tmp_path, "references", **changes).train(resume_from_checkpoint=checkpoint)
    trainer = build(tmp_path, "references", **changes, options={"allow_inexact": True})
    trainer.train(resume_from_checkpoint=checkpoint)
    assert trainer.state.global_step == 11
    assert len(memory_of(trainer)) == changes.get("capacity", 14)


def test_torn_rows_leave_a_buffer_that_works_where_inexactness_is_allowed(tmp_path: Path) -> None:
    checkpoint = Path(_saved(tmp_path, "memory"))
    (torn,) = (checkpoint / "methods" / "memory" / "rows").iterdir()
    whole = torn.read_bytes()
    torn.write_bytes(whole[:100] + b"x" * (len(whole) - 100))
    with pytest.raises(ValueError, match=r"methods/memory/rows/rows.arrow is damaged"):
        build(tmp_path, "memory").train(resume_from_checkpoint=str(checkpoint))
    marker = json.loads((checkpoint / "complete.json").read_text())
    without = {"format": 1, "files": marker["files"]}  # as older versions wrote it
    (checkpoint / "complete.json").write_text(json.dumps(without))
    with pytest.raises(ValueError, match=r"Stream 'memory': .*damaged"):
        build(tmp_path, "memory").train(resume_from_checkpoint=str(checkpoint))
    trainer = build(tmp_path, "memory", options={"allow_inexact": True})
    trainer.train(resume_from_checkpoint=str(checkpoint))
    buffer = memory_of(trainer)
    assert len(buffer) == 14 == buffer.selection.size
    assert all(buffer[slot] is not None for slot in range(14))


@pytest.mark.parametrize("file", ["buffer.json", "buffer.npz", "rows/rows.arrow"])
def test_a_bit_that_flipped_in_a_saved_buffer_is_told_or_changes_nothing(tmp_path: Path, file: str) -> None:
    def loaded() -> ReplayBuffer:
        buffer = ReplayBuffer(6, storage="memory", seed=0)
        buffer.load(tmp_path)
        return buffer

    saved = ReplayBuffer(6, storage="memory", seed=0)
    saved.remember("x", Tokens(20, 1, length=8))
    saved.save(tmp_path)
    whole, num_told = (tmp_path / file).read_bytes(), 0
    for place in range(0, len(whole), 29):
        changed = bytearray(whole)
        changed[place] ^= 1
        (tmp_path / file).write_bytes(changed)
        told, found = "", saved
        try:
            found = loaded()
        except ValueError as error:
            told = str(error)
        num_told += bool(told)
        assert not told or str(tmp_path / file) in told
        assert snapshot(found) == snapshot(saved), "else it was in what nobody reads, such as the time in a header"
    assert num_told > len(whole) // 29 // 2


def test_a_buffer_that_was_handed_on_is_in_the_second_runs_checkpoints(tmp_path: Path) -> None:
    def second(folder: Path, buffer: ReplayBuffer, callbacks: Any = ()) -> MixingTrainer:
        streams = {"new": Tokens(30, 5, length=8), "memory": buffer}
        args = {"save_strategy": "steps", "save_steps": 3, "max_steps": 8}
        return make(folder, streams, args=args, callbacks=list(callbacks))

    old = Tokens(30, 4, length=8)

    def filled() -> ReplayBuffer:
        buffer = ReplayBuffer(14, seed=0)
        make(tmp_path / "first", {"old": old, "memory": buffer}, args={"max_steps": 5}).train()
        return buffer

    whole = second(tmp_path / "whole", filled())
    whole.train()
    interrupted = second(tmp_path / "killed", filled(), [KilledAt("on_step_end", 4)])
    with pytest.raises(Killed):
        interrupted.train()
    buffer = ReplayBuffer(14)
    buffer.remember("old", old, [])  # a new process knows nothing of the first run but its data
    resumed = second(tmp_path / "killed", buffer)
    resumed.train(resume_from_checkpoint=True)
    assert end(resumed)["weights"] == end(whole)["weights"]
    assert snapshot(memory_of(resumed)) == snapshot(memory_of(whole))
