"""Runs that are killed at some instant and go on are the runs that were never killed, to the bit."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BertForSequenceClassification,
    EarlyStoppingCallback,
    PreTrainedModel,
    TrainerCallback,
    TrainerState,
    default_data_collator,
)

import mixer.trainer.checkpointing.files
import mixer.trainer.checkpointing.save
from mixer import LossChange, MixingTrainer, schedules
from mixer.trainer.checkpointing.choose import newest_complete
from mixer.trainer.checkpointing.files import (
    MARKER_FILE,
    STATE_FILE,
    complete,
    find_problem,
    list_checkpoints,
    put_back,
    rotate,
)
from tests.helpers import Tokens, _bert_config, arguments, three_streams, weights_of

ROOT = Path(__file__).parents[4]
KIND = "sequence-classification"

# An epoch of 37 samples is five steps, the last of one sample.
RUNS: dict[str, dict[str, Any]] = {
    "steps": {"logging_steps": 3, "eval_strategy": "steps", "eval_steps": 2, "save_steps": 4, "eval_on_start": True},
    "epochs": {"logging_strategy": "epoch", "eval_strategy": "epoch", "save_steps": 5},
    "saved by epoch": {"logging_steps": 2, "eval_strategy": "epoch", "save_strategy": "epoch"},
    "best": {
        "logging_steps": 4,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 2,
        "save_total_limit": 1,
        "load_best_model_at_end": True,
    },
    # Batches of five to twenty samples, and a learning rate that follows the data and the batch.
    "changing": {
        "logging_steps": 3,
        "eval_strategy": "epoch",
        "save_steps": 2,
        "lr_scheduler_type": "cosine",
        "warmup_steps": 3,
        "max_grad_norm": 1.0,
    },
    "cut short": {"logging_steps": 2, "eval_strategy": "epoch", "save_steps": 3, "max_steps": 8},
}


def changing_size() -> schedules.Schedule:
    """Grows or shrinks at every step: the losses of a few steps decide."""
    return schedules.SmoothedLossChange(
        0.02,
        0.5,
        1,
        factor=1.4,
        otherwise=0.7,
        gradient_norm=True,
        initial=9,
        minimum=5,
        maximum=20,
        learning_rate="sqrt",
    )


def masking(samples: list[Any]) -> Any:
    """Draws from all three generators."""
    batch = default_data_collator(samples)
    share = 0.1 + 0.1 * random.random() + 0.1 * np.random.random()  # noqa: NPY002
    batch["input_ids"] = torch.where(torch.rand(batch["input_ids"].shape) < share, 1, batch["input_ids"])
    return batch


def build(folder: Path, name: str = "steps", callbacks: Any = None, **changes: Any) -> MixingTrainer:
    torch.manual_seed(0)
    options = {"max_steps": -1, "num_train_epochs": 2, "save_strategy": "steps", "optim": "adamw_torch", **RUNS[name]}
    model = BertForSequenceClassification(_bert_config(num_labels=3, hidden_dropout_prob=0.2))
    reads_evaluations = options["eval_strategy"] == "epoch"
    return MixingTrainer(
        model,
        arguments(folder, per_device_train_batch_size=4, **{**options, **changes}),
        train_dataset=three_streams(KIND),
        eval_dataset={key: Tokens(4, seed, KIND) for seed, key in enumerate("abc")},
        data_collator=masking,
        batch_size=changing_size() if name == "changing" else 9,
        mixing=LossChange(loss="evaluation" if reads_evaluations else "train", num_warmup_observations=1),
        callbacks=callbacks,
    )


def end_of(trainer: MixingTrainer) -> dict[str, Any]:
    """Everything that has to be the same, in a form that `==` compares to the bit."""
    timed = ("runtime", "per_second")
    logs = [
        {key: value for key, value in entry.items() if not key.endswith(timed)} for entry in trainer.state.log_history
    ]
    optimizer = trainer.optimizer.state_dict()["state"]
    return {
        "weights": weights_of(trainer.model).tolist(),
        "optimizer": [{key: torch.as_tensor(v).tolist() for key, v in state.items()} for state in optimizer.values()],
        "streams": trainer.ledger.to_pandas().to_json(double_precision=15),
        "losses": [value.hex() for value in trainer.ledger.to_pandas()["loss"]],
        "clock": trainer.ledger.clock().to_json(double_precision=15),
        "evaluations": trainer.ledger.evaluations().values.tolist(),
        "comparisons": repr(trainer.ledger.comparisons().to_dict("list")),
        "logs": logs,
        "learning rate": trainer.lr_scheduler.get_last_lr(),
        "state": (trainer.state.global_step, trainer.state.epoch, trainer.state.total_flos, trainer.state.best_metric),
    }


def go_on(trainer: MixingTrainer) -> dict[str, Any]:
    """Goes on as `mixer train --resume auto` does."""
    trainer.train(resume_from_checkpoint=trainer.newest_checkpoint())
    return end_of(trainer)


def assert_same(end: dict[str, Any], expected: dict[str, Any]) -> None:
    different = [name for name in expected if end[name] != expected[name]]
    assert not different, {name: (end[name], expected[name]) for name in different}


class Killed(BaseException):
    """As sudden as a signal: nothing catches it."""


class Instants:
    """Counts the instants of a run at which it could be killed, and kills it at one of them."""

    def __init__(self, kill_at: int = -1):
        self.names: list[str] = []
        self.kill_at = kill_at

    def pass_by(self, name: str) -> None:
        self.names.append(name)
        if len(self.names) - 1 == self.kill_at:
            raise Killed(name)

    def around(self, name: str, function: Callable[..., Any], file_of: Callable[..., Path | None]) -> Any:
        """Wraps what writes a file: it can be killed before, after half of the file, and after."""

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            self.pass_by(f"before {name}")
            result = function(*args, **kwargs)
            file = file_of(*args, **kwargs)
            if file is not None and file.is_file():
                whole = file.read_bytes()
                file.write_bytes(whole[: len(whole) // 2])
                self.pass_by(f"within {name}")
                file.write_bytes(whole)
            self.pass_by(f"after {name}")
            return result

        return wrapped


class Events(TrainerCallback):
    def __init__(self, instants: Instants):
        for event in ("step_begin", "pre_optimizer_step", "step_end", "evaluate", "log", "save", "epoch_end"):
            setattr(self, f"on_{event}", lambda *_, name=event, **__: instants.pass_by(f"on_{name}"))


def watched(monkeypatch: pytest.MonkeyPatch, kill_at: int = -1) -> Instants:
    """Makes whatever a checkpoint is written with pass by the instants."""
    instants = Instants(kill_at)

    def watch(owner: Any, name: str, file_of: Callable[..., Path | None]) -> None:
        monkeypatch.setattr(owner, name, instants.around(name, getattr(owner, name), file_of))

    watch(torch, "save", lambda _, path, **__: Path(path))
    watch(PreTrainedModel, "save_pretrained", lambda _, folder, **__: Path(folder) / "model.safetensors")
    watch(TrainerState, "save_to_json", lambda _, path: Path(path))
    watch(
        mixer.trainer.checkpointing.save, "write_json", lambda path, *_, **__: None
    )  # written whole or not at all: tested by itself
    watch(mixer.trainer.checkpointing.files, "write_json", lambda path, *_, **__: None)
    watch(mixer.trainer.checkpointing.files, "_remove", lambda _: None)
    watch(shutil, "rmtree", lambda *_, **__: None)
    return instants


@pytest.fixture(scope="module")
def expected(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, Any], list[str]]]:
    """Gives the end of a run that nobody killed, and its instants."""
    ends: dict[str, tuple[dict[str, Any], list[str]]] = {}

    def run(name: str) -> tuple[dict[str, Any], list[str]]:
        if name not in ends:
            with pytest.MonkeyPatch.context() as patch:
                instants = watched(patch)
                trainer = build(tmp_path_factory.mktemp("whole"), name, [Events(instants)])
                trainer.train()
            ends[name] = end_of(trainer), instants.names
        return ends[name]

    return run


def _kill(folder: Path, name: str, instant: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        instants = watched(patch, instant)
        trainer = build(folder, name, [Events(instants)])
        with pytest.raises(Killed):
            trainer.train(resume_from_checkpoint=trainer.newest_checkpoint())


# ---- Killed at any instant ----


@pytest.mark.parametrize("share", [0.25, 0.6, 0.95])
@pytest.mark.parametrize("name", RUNS)
def test_a_killed_run_ends_as_one_that_was_not(
    name: str, share: float, tmp_path: Path, expected: Callable[..., Any]
) -> None:
    end, instants = expected(name)
    _kill(tmp_path, name, int(share * (len(instants) - 1)))
    assert_same(go_on(build(tmp_path, name)), end)


@pytest.mark.parametrize("moment", ["before", "within", "after"])
@pytest.mark.parametrize("file", ["save_pretrained", "save", "save_to_json", "write_json", "_remove", "rmtree"])
def test_a_run_killed_while_it_writes_a_checkpoint_ends_as_one_that_was_not(
    file: str, moment: str, tmp_path: Path, expected: Callable[..., Any]
) -> None:
    end, instants = expected("best")
    found = [number for number, instant in enumerate(instants) if instant == f"{moment} {file}"]
    if not found:
        pytest.skip("no such instant")
    _kill(tmp_path, "best", found[len(found) // 2])
    assert_same(go_on(build(tmp_path, "best")), end)
    kept = list_checkpoints(tmp_path)
    assert len(kept) == 1, "the best one alone, as the Trainer leaves it"


def test_a_run_killed_many_times_ends_as_one_that_was_not(tmp_path: Path, expected: Callable[..., Any]) -> None:
    end, instants = expected("steps")
    for instant in (20, 70, 20, 30):
        _kill(tmp_path, "steps", instant)
    assert_same(go_on(build(tmp_path, "steps")), end)
    assert len(instants) > 120


@pytest.mark.parametrize("name", RUNS)
def test_a_finished_run_has_nothing_left_to_do(name: str, tmp_path: Path, expected: Callable[..., Any]) -> None:
    build(tmp_path, name).train()
    begun = Instants()
    assert_same(go_on(build(tmp_path, name, [Events(begun)])), expected(name)[0])
    # Of the run that keeps one checkpoint the Trainer leaves the best, which need not be the last.
    assert ("on_step_begin" in begun.names) == (name == "best")


def test_the_end_of_an_epoch_that_was_left_is_caught_up_with(tmp_path: Path, expected: Callable[..., Any]) -> None:
    end, instants = expected("epochs")
    saved = [number for number, instant in enumerate(instants) if instant == "on_save"]
    for number in saved:
        _kill(tmp_path / str(number), "epochs", number)
        checkpoint = newest_complete(tmp_path / str(number)).checkpoint
        assert json.loads((Path(str(checkpoint)) / STATE_FILE).read_text())["progress"]["epoch_end_is_left"]
        assert_same(go_on(build(tmp_path / str(number), "epochs")), end)


def test_rows_of_an_evaluation_after_the_checkpoint_do_not_come_twice(
    tmp_path: Path, expected: Callable[..., Any]
) -> None:
    end, instants = expected("epochs")
    evaluated = [number for number, instant in enumerate(instants) if instant == "on_evaluate"]
    _kill(tmp_path, "epochs", evaluated[3])  # the first epoch's last event: all three sets and their mean
    assert len(build(tmp_path, "epochs").ledger.evaluations()) in (0, 3)
    assert_same(go_on(build(tmp_path, "epochs")), end)


def test_a_killed_process_leaves_what_a_run_can_go_on_from(tmp_path: Path, expected: Callable[..., Any]) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; import torch\n"
        "from tests.mixer.trainer.checkpointing.test_resume import build\n"
        "save, calls = torch.save, []\n"
        "def torn(value, path, **options):\n"
        "    save(value, path, **options)\n"
        "    calls.append(path)\n"
        "    if 'checkpoint-8' in str(path) and 'optimizer' in str(path):\n"
        "        os.truncate(path, 100)\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "torch.save = torn\n"
        "torch.set_num_threads(1)\n"
        "build(Path(sys.argv[1])).train()\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    killed = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)], env=environment, capture_output=True, timeout=120, check=False
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr.decode()[-2000:]
    trainer = build(tmp_path)
    assert str(trainer.newest_checkpoint()).endswith("checkpoint-4")
    assert_same(go_on(trainer), expected("steps")[0])


# ---- Which checkpoint ----


def test_torn_and_missing_files_are_named_and_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    build(tmp_path, save_steps=2).train()
    (tmp_path / "checkpoint-10" / MARKER_FILE).unlink()
    (tmp_path / "checkpoint-8" / STATE_FILE).write_text("{}")
    (tmp_path / "checkpoint-6" / "optimizer.pt").unlink()
    found = newest_complete(tmp_path)
    assert str(found.checkpoint).endswith("checkpoint-4")
    problems = [f"{Path(path).name}: {problem}" for path, problem in found.passed_over.items()]
    assert problems[0].startswith("checkpoint-10: complete.json is missing, so it is incomplete")
    assert problems[1].startswith("checkpoint-8: mixing.json is torn: it has 2 bytes instead of")
    assert problems[2] == "checkpoint-6: optimizer.pt is missing"
    trainer = build(tmp_path, save_steps=2)
    trainer.train(resume_from_checkpoint=True)
    assert trainer.state.global_step == 10


def test_a_torn_controller_of_the_right_size_is_found(tmp_path: Path) -> None:
    (tmp_path / "checkpoint-1").mkdir()
    (tmp_path / "checkpoint-1" / STATE_FILE).write_text("{torn")
    complete(tmp_path / "checkpoint-1")
    assert find_problem(tmp_path / "checkpoint-1") == "mixing.json is torn"
    (tmp_path / "checkpoint-1" / MARKER_FILE).write_text("[]")
    assert str(find_problem(tmp_path / "checkpoint-1")).startswith("complete.json is torn")


def test_what_cannot_be_resumed_from_says_which_file_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"No valid checkpoint found in output directory \(.*\)\. To start over"):
        build(tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match=r"the folder does not exist.*start over"):
        build(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-3"))
    build(tmp_path).train()
    (tmp_path / "checkpoint-8" / "rng_state.pth").write_bytes(b"torn")
    (tmp_path / "checkpoint-10" / MARKER_FILE).unlink()
    with pytest.raises(ValueError, match=r"rng_state.pth is torn.*The newest .* resumed from is .*checkpoint-4\."):
        build(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))
    shutil.rmtree(tmp_path / "checkpoint-4")
    with pytest.raises(ValueError, match=r"No valid checkpoint .*checkpoint-8: rng_state.pth is torn"):
        build(tmp_path).train(resume_from_checkpoint=True)


def test_weights_alone_are_no_checkpoint_to_resume_from(tmp_path: Path) -> None:
    build(tmp_path, save_only_model=True).train()
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-10", "checkpoint-8", "checkpoint-4"]
    with pytest.raises(ValueError, match=r"no mixing.json, because it was saved with save_only_model=True"):
        build(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-8"))


def test_a_new_run_in_the_same_folder_supersedes_the_old_checkpoints(
    tmp_path: Path, expected: Callable[..., Any]
) -> None:
    build(tmp_path, seed=1).train()
    with pytest.MonkeyPatch.context() as patch:
        instants = watched(patch, 20)
        with pytest.raises(Killed):
            build(tmp_path, callbacks=[Events(instants)]).train()
    found = newest_complete(tmp_path)
    assert found.checkpoint is None
    with pytest.raises(ValueError, match="no checkpoint there can be resumed from"):
        build(tmp_path).train(resume_from_checkpoint=True)
    assert all("a run started over" in problem for problem in found.passed_over.values())
    assert_same(go_on(build(tmp_path)), expected("steps")[0])


def test_going_on_earlier_supersedes_what_came_later(tmp_path: Path, expected: Callable[..., Any]) -> None:
    build(tmp_path).train()
    with pytest.MonkeyPatch.context() as patch:
        instants = watched(patch, 8)
        with pytest.raises(Killed):
            build(tmp_path, callbacks=[Events(instants)]).train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    # The ledger was cut to step 4: the later checkpoints would leave a gap in it.
    assert str(newest_complete(tmp_path).checkpoint).endswith("checkpoint-4")
    assert_same(go_on(build(tmp_path)), expected("steps")[0])


def test_going_on_from_another_folder_supersedes_all_that_is_in_its_own(tmp_path: Path) -> None:
    build(tmp_path / "first").train()
    build(tmp_path / "second").train()
    with pytest.MonkeyPatch.context() as patch:
        trainer = build(tmp_path / "second", callbacks=[Events(watched(patch, 8))])
        with pytest.raises(Killed):
            trainer.train(resume_from_checkpoint=str(tmp_path / "first" / "checkpoint-8"))
    assert newest_complete(tmp_path / "second").checkpoint is None
    assert str(newest_complete(tmp_path / "first").checkpoint).endswith("checkpoint-10")


def test_the_whole_run_is_summed_up(tmp_path: Path) -> None:
    _kill(tmp_path, "steps", 70)
    path = Path(str(newest_complete(tmp_path).checkpoint)) / STATE_FILE
    state = json.loads(path.read_text())
    state["progress"]["seconds"] += 1000.0 - state["progress"]["seconds"]
    path.write_text(json.dumps(state))
    complete(path.parent)
    summary = build(tmp_path).train(resume_from_checkpoint=True).metrics
    assert summary["train_runtime"] == pytest.approx(1000.0, abs=10.0)
    assert summary["train_steps_per_second"] == pytest.approx(0.01, abs=0.001)


# ---- What stays and what goes ----


def _write(folder: Path, step: int, is_complete: bool = True) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir()
    (checkpoint / STATE_FILE).write_text("{}")
    if is_complete:
        complete(checkpoint)
    return checkpoint


def test_a_torn_checkpoint_never_displaces_a_whole_one(tmp_path: Path) -> None:
    for step, is_complete in ((2, True), (4, False), (6, True), (8, False), (10, True)):
        newest = _write(tmp_path, step, is_complete)
    rotate(newest, 2, None)
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-10", "checkpoint-6"]


def test_the_best_and_the_newest_stay(tmp_path: Path) -> None:
    for step in (2, 4, 6):
        newest = _write(tmp_path, step)
    rotate(newest, 1, str(tmp_path / "checkpoint-2"))
    assert [path.name for path in list_checkpoints(tmp_path)] == ["checkpoint-6", "checkpoint-2"]
    rotate(newest, None, None)
    rotate(newest, 0, None)
    assert len(list_checkpoints(tmp_path)) == 2


def test_a_checkpoint_that_is_written_again_is_kept_until_it_is_whole(tmp_path: Path) -> None:
    checkpoint = _write(tmp_path, 2)
    mixer.trainer.checkpointing.files.begin_writing(checkpoint)
    (checkpoint / STATE_FILE).write_text("{to")
    assert newest_complete(tmp_path).checkpoint == str(checkpoint)  # put back
    assert (checkpoint / STATE_FILE).read_text() == "{}"
    mixer.trainer.checkpointing.files.begin_writing(checkpoint)
    (checkpoint / STATE_FILE).write_text('{"new": 1}')
    complete(checkpoint)
    put_back(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]
    assert (checkpoint / STATE_FILE).read_text() == '{"new": 1}'


def test_the_limit_and_the_best_model_mean_what_they_mean_to_the_trainer(tmp_path: Path) -> None:
    trainer = build(tmp_path, "best", save_total_limit=2)
    trainer.train()
    kept = {path.name for path in list_checkpoints(tmp_path)}
    assert kept in (
        {"checkpoint-10", Path(str(trainer.state.best_model_checkpoint)).name},
        {"checkpoint-8", "checkpoint-10"},
    )
    best = torch.load(tmp_path / "checkpoint-10" / "training_args.bin", weights_only=False)
    assert best.save_total_limit == trainer.args.save_total_limit == 2


# ---- Stopping and going on ----


class StopAt(TrainerCallback):
    def __init__(self, step: int):
        self.step = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == self.step:
            control.should_training_stop = control.should_save = True


def test_a_run_that_was_stopped_and_ended_goes_on(tmp_path: Path, expected: Callable[..., Any]) -> None:
    build(tmp_path, callbacks=[StopAt(6)]).train()  # when the time on the cluster is over, say
    assert_same(go_on(build(tmp_path)), expected("steps")[0])


def test_a_run_that_was_stopped_and_killed_before_its_end_just_ends(tmp_path: Path) -> None:
    ended = build(tmp_path / "ended", "epochs", [StopAt(6)])
    ended.train()
    with pytest.MonkeyPatch.context() as patch:
        instants = watched(patch)
        build(tmp_path / "count", "epochs", [Events(instants), StopAt(6)]).train()
    saved = [number for number, instant in enumerate(instants.names) if instant == "on_save"]
    with pytest.MonkeyPatch.context() as patch, pytest.raises(Killed):
        build(tmp_path / "killed", "epochs", [Events(watched(patch, saved[1])), StopAt(6)]).train()
    assert_same(go_on(build(tmp_path / "killed", "epochs")), end_of(ended))


def test_a_larger_budget_trains_on(tmp_path: Path) -> None:
    build(tmp_path, "cut short").train()
    longer = build(tmp_path, "cut short", max_steps=12)
    longer.train(resume_from_checkpoint=True)
    assert longer.ledger.to_pandas()["step"].unique().tolist() == list(range(1, 13))


def test_early_stopping_goes_on_with_its_patience(tmp_path: Path) -> None:
    options = {"learning_rate": 0.0, "restore_callback_states_from_checkpoint": True}

    def stopping() -> list[Any]:
        return [EarlyStoppingCallback(2)]

    whole = build(tmp_path / "whole", "best", stopping(), **options)
    whole.train()
    assert whole.state.global_step == 8, "two evaluations without a better loss"
    with pytest.MonkeyPatch.context() as patch:
        instants = watched(patch, 60)
        with pytest.raises(Killed):
            build(tmp_path / "killed", "best", [Events(instants), *stopping()], **options).train()
    resumed = build(tmp_path / "killed", "best", stopping(), **options)
    assert_same(go_on(resumed), end_of(whole))
