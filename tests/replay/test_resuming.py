import errno
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import torch
from transformers import LlamaForCausalLM, LlamaForSequenceClassification, TrainerCallback

from mixer import LossChange, MixingTrainer, Stream
from mixer.utils.files import WriteError
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import Tokens, _llama_config, layouts
from tests.mixer.checkpoint.test_resume import Killed, assert_same, end_of
from tests.refusals import refused
from tests.replay.buffers import STORAGES, Classes, InTurn, make, memory_of, snapshot
from tests.replay.test_feeding import iterable

ADAPTIVE = {"mixing": lambda: ReplayRatio(0.3, LossChange(num_warmup_observations=1))}
RUNS: dict[str, dict[str, Any]] = {
    "references": {**ADAPTIVE},
    "memory": {"storage": "memory"},
    "disk": {"storage": "disk", "retrieval": InTurn()},
    "classes": {"selection": "ClassBalanced", "is_classifier": True, "storage": "memory"},
    "losses": {"selection": "LossAware", "storage": "disk", **ADAPTIVE},
    "on top": {"mixing": lambda: ReplayRatio(0.3, "Uniform", additional=True)},
    "workers": {"args": {"dataloader_num_workers": 2}, **ADAPTIVE},
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
# Much like others: a run on disk goes on below, too, where the disk was full.
SLOW = ("on top", "losses", "memory", "classes", "workers", "disk")


def build(folder: Path, name: str, callbacks: Any = (), **changes: Any) -> MixingTrainer:
    run = {"selection": "Reservoir", "storage": "references", "retrieval": "Uniform", **RUNS[name], **changes}
    torch.manual_seed(0)
    storage = STORAGES[run["storage"]](folder / "rows")
    buffer = ReplayBuffer(run.get("capacity", 14), run["selection"], storage, run["retrieval"])
    if run.get("is_classifier"):
        streams: Any = {"a": Classes(37, 1), "b": Classes(23, 2)}
        model: Any = LlamaForSequenceClassification(_llama_config(num_labels=3, attention_dropout=0.2))
    else:
        plain = {"a": Tokens(37, 0, length=8), "b": Tokens(30, 1, length=8)}
        streams = run["streams"]() if "streams" in run else plain
        model = LlamaForCausalLM(_llama_config(attention_dropout=0.2))
    args = {"save_strategy": "steps", "save_steps": 3, "logging_steps": 2, "optim": "adamw_torch", "max_steps": 8}
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
    state = [buffer.selection, buffer.retrieval, buffer.entries, [buffer[slot] for slot in range(len(buffer))]]
    return {**end_of(trainer), **snapshot(buffer), "held": held, "layouts": layouts(state)}


class KilledAt(TrainerCallback):
    def __init__(self, event: str, step: int):
        def call(args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step == step:
                raise Killed

        setattr(self, event, call)


def killed(folder: Path, name: str, event: str, step: int) -> None:
    trainer = build(folder, name, [KilledAt(event, step)])
    with pytest.raises(Killed):
        trainer.train(resume_from_checkpoint=trainer.newest_checkpoint())
    if trainer._parts.run.loader is not None:
        trainer._parts.run.loader.stop()


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Path, MixingTrainer, dict[str, Any]]]:
    """Whole runs: their folder, which tests copy before they change it, their trainer and their end."""
    ends: dict[str, tuple[Path, MixingTrainer, dict[str, Any]]] = {}

    def run(name: str) -> tuple[Path, MixingTrainer, dict[str, Any]]:
        if name not in ends:
            folder = tmp_path_factory.mktemp("whole")
            trainer = build(folder, name)
            trainer.train()
            assert memory_of(trainer).num_drawn > 0
            assert memory_of(trainer).num_kept > len(memory_of(trainer))
            ends[name] = folder, trainer, end(trainer)
        return ends[name]

    return run


@pytest.fixture
def copied(tmp_path: Path, whole: Any) -> Callable[[str], Path]:
    """Gives the checkpoint of the sixth step of a whole run, in a folder of the test's own."""

    def copy(name: str) -> Path:
        shutil.copytree(whole(name)[0], tmp_path, dirs_exist_ok=True)
        return tmp_path / "checkpoint-6"

    return copy


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.full] if name in SLOW else []) for name in RUNS]
)
def test_a_run_killed_again_and_again_ends_as_one_that_was_not(name: str, tmp_path: Path, whole: Any) -> None:
    killed(tmp_path, name, "on_save", 3)
    killed(tmp_path, name, "on_step_begin", 7)
    trainer = build(tmp_path, name, **({"args": {}} if name == "workers" else {}))  # workers may be others after a kill
    assert str(trainer.newest_checkpoint()).endswith("checkpoint-6")
    trainer.train(resume_from_checkpoint=trainer.newest_checkpoint())
    assert_same(end(trainer), whole(name)[2])


def test_a_full_disk_ends_the_run_without_loss(tmp_path: Path, whole: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    new_file = pa.ipc.new_file

    def full(*args: Any, **kwargs: Any) -> Any:
        if (tmp_path / "checkpoint-3" / "complete.json").exists():
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return new_file(*args, **kwargs)

    with monkeypatch.context() as patch:
        patch.setattr(pa.ipc, "new_file", full)
        with pytest.raises(WriteError) as error:
            build(tmp_path, "disk").train()
    told = str(error.value)
    assert f"A file of the run could not be written (No space left on device: {tmp_path / 'rows' / 'rows-'}" in told
    assert f"the run resumes from {tmp_path / 'checkpoint-3'} with train(resume_from_checkpoint=True)" in told
    again = build(tmp_path, "disk")
    again.train(resume_from_checkpoint=True)
    assert_same(end(again), whole("disk")[2])


INEXACT = {"options": {"allow_inexact": True}}


NO_MEMORY = {"has_memory": False, "mixing": lambda: "Uniform"}


@pytest.mark.parametrize(
    ("before", "changes", "message"),
    [
        (NO_MEMORY, {}, "'memory'.*not in the checkpoint"),
        ({}, NO_MEMORY, "mixing was ReplayRatio|the streams were"),
        ({}, {"capacity": 15}, "capacity=14"),
        ({}, {"streams": lambda: {"a": Tokens(37, 9, length=8), "b": Tokens(30, 1, length=8)}}, "'a' has changed"),
    ],
)
def test_another_buffer_or_other_data_are_refused_unless_told(before, changes, message, copied, tmp_path) -> None:
    if before:
        build(tmp_path, "references", **before).train()
    checkpoint = str(tmp_path / "checkpoint-6" if before else copied("references"))
    with pytest.raises(ValueError, match=message):
        build(tmp_path, "references", **changes).train(resume_from_checkpoint=checkpoint)
    trainer = build(tmp_path, "references", **changes, **INEXACT)
    trainer.train(resume_from_checkpoint=checkpoint)
    assert trainer.state.global_step == 8
    if changes is not NO_MEMORY:
        assert memory_of(trainer).num_drawn > 0
        assert len(memory_of(trainer)) <= changes.get("capacity", 14)


def test_torn_rows_leave_a_buffer_that_works_where_inexactness_is_allowed(copied: Any, tmp_path: Path) -> None:
    checkpoint = copied("memory")
    (torn,) = (checkpoint / "methods" / "memory" / "rows").iterdir()
    whole = torn.read_bytes()
    torn.write_bytes(whole[:100] + b"x" * (len(whole) - 100))
    marker = json.loads((checkpoint / "complete.json").read_text())
    (checkpoint / "complete.json").write_text(json.dumps({"format": 1, "files": marker["files"]}))  # as formerly
    with refused(str(torn), stream="memory"):
        build(tmp_path, "memory").train(resume_from_checkpoint=str(checkpoint))
    trainer = build(tmp_path, "memory", **INEXACT)
    trainer.train(resume_from_checkpoint=str(checkpoint))
    buffer = memory_of(trainer)
    assert len(buffer) == 14 == buffer.selection.size
    assert all(buffer[slot] is not None for slot in range(14))
