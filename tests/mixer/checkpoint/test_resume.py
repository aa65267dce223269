"""Runs that are killed at some instant and go on are the runs that were never killed, to the bit."""

import json
import random
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    BertForSequenceClassification,
    HfArgumentParser,
    PreTrainedModel,
    TrainerCallback,
    TrainerState,
    TrainingArguments,
    default_data_collator,
)

from mixer import LossChange, MixingTrainer, schedules
from mixer.checkpoint import checkpoint_files
from mixer.checkpoint.checkpoint_files import MARKER_FILE, STATE_FILE, complete, find_problem, list_checkpoints
from mixer.checkpoint.choosing import as_request, newest_complete
from mixer.trainer import save
from tests.helpers import On, Tokens, _bert_config, arguments, three_streams, weights_of
from tests.refusals import refused

KIND = "sequence-classification"

BY_STEPS = {"eval_strategy": "steps", "eval_steps": 2}
BY_EPOCH = {"eval_strategy": "epoch"}
KEEPS_BEST = {"save_total_limit": 1, "load_best_model_at_end": True}
RATES = {"lr_scheduler_type": "cosine", "warmup_steps": 3, "max_grad_norm": 1.0}
# An epoch of 37 samples is five steps, the last of one sample.
RUNS: dict[str, dict[str, Any]] = {
    "steps": {"logging_steps": 3, "save_steps": 4, "eval_on_start": True, **BY_STEPS},
    "epochs": {"logging_strategy": "epoch", "save_steps": 5, **BY_EPOCH},
    "saved by epoch": {"logging_steps": 2, "save_strategy": "epoch", **BY_EPOCH},
    "best": {"logging_steps": 4, "save_steps": 2, **BY_STEPS, **KEEPS_BEST},
    # Batches of five to twenty samples, and a learning rate that follows the data and the batch.
    "changing": {"logging_steps": 3, "save_steps": 2, **BY_EPOCH, **RATES},
    "cut short": {"logging_steps": 2, "save_steps": 3, "max_steps": 8, **BY_EPOCH},
}


def changing_size() -> schedules.Schedule:
    """Grows or shrinks at every step: the losses of a few steps decide."""
    bounds = {"initial": 9, "minimum": 5, "maximum": 20}
    return schedules.SmoothedLossChange(
        0.02, 0.5, 1, factor=1.4, otherwise=0.7, gradient_norm=True, learning_rate="sqrt", **bounds
    )


def masking(samples: list[Any]) -> Any:
    """Draws from all three generators."""
    batch = default_data_collator(samples)
    share = 0.1 + 0.1 * random.random() + 0.1 * np.random.random()  # noqa: NPY002
    batch["input_ids"] = torch.where(torch.rand(batch["input_ids"].shape) < share, 1, batch["input_ids"])
    return batch


def build(folder: Path, name: str = "steps", callbacks: Any = None, **changes: Any) -> MixingTrainer:
    torch.manual_seed(0)
    mixing = changes.pop("mixing", None)
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
        mixing=mixing or LossChange(loss="evaluation" if reads_evaluations else "train", num_warmup_observations=1),
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
    # Written whole or not at all: tested by itself.
    for owner, name in (
        (save, "write_json"),
        (checkpoint_files, "write_json"),
        (checkpoint_files, "_remove"),
        (shutil, "rmtree"),
    ):
        watch(owner, name, lambda *_, **__: None)
    return instants


Whole = Callable[[str], tuple[dict[str, Any], list[str]]]
FULL = pytest.mark.full


def _kill(folder: Path, name: str, instant: int, callbacks: Any = (), resume: Any = True, **changes: Any) -> None:
    """Trains, from the newest checkpoint or from another one, and kills the run at an instant."""
    with pytest.MonkeyPatch.context() as patch:
        trainer = build(folder, name, [Events(watched(patch, instant)), *callbacks], **changes)
        with pytest.raises(Killed):
            trainer.train(resume_from_checkpoint=trainer.newest_checkpoint() if resume is True else resume)


WRITING = ("within save_pretrained", "after write_json", "before rmtree")
QUICK = [("epochs", 0.6), ("best", 0.6), ("changing", 0.6)]
RARER = ("within save", "within save_to_json", "before write_json", "before _remove", "after rmtree", 0.95)
OTHERS = [
    ("steps", 0.25),
    ("steps", 0.95),
    ("saved by epoch", 0.95),
    ("changing", 0.95),
    ("cut short", 0.6),
    *(("best", moment) for moment in RARER),
]
ALWAYS = [*QUICK, *(("best", moment) for moment in WRITING)]


@pytest.mark.parametrize(("name", "moment"), [*ALWAYS, *(pytest.param(*case, marks=FULL) for case in OTHERS)])
def test_a_killed_run_ends_as_one_that_was_not(name: str, moment: Any, tmp_path: Path, whole: Whole) -> None:
    end, instants = whole(name)
    found = [number for number, instant in enumerate(instants) if isinstance(moment, float) or moment == instant]
    share = moment if isinstance(moment, float) else 0.5
    _kill(tmp_path, name, found[int(share * (len(found) - 1))])
    assert_same(go_on(build(tmp_path, name)), end)
    assert name != "best" or len(list_checkpoints(tmp_path)) == 1, "the best one alone, as the Trainer leaves it"


@pytest.mark.parametrize("name", ["steps", "best"])
def test_a_finished_run_has_nothing_left_to_do(name: str, tmp_path: Path, whole: Whole) -> None:
    build(tmp_path, name).train()
    begun = Instants()
    assert_same(go_on(build(tmp_path, name, [Events(begun)])), whole(name)[0])
    # Of the run that keeps one checkpoint the Trainer leaves the best, which need not be the last.
    assert ("on_step_begin" in begun.names) == (name == "best")


def test_the_end_of_an_epoch_that_was_left_is_caught_up_with_once(tmp_path: Path, whole: Whole) -> None:
    end, instants = whole("epochs")
    saved, evaluated = ([n for n, own in enumerate(instants) if own == event] for event in ("on_save", "on_evaluate"))
    for number in [*saved, evaluated[3]]:  # the first epoch's last event: three sets and their mean
        folder = tmp_path / str(number)
        _kill(folder, "epochs", number)
        state = json.loads((Path(str(newest_complete(folder).checkpoint)) / STATE_FILE).read_text())
        assert state["progress"]["epoch_end_is_left"]
        assert_same(go_on(build(folder, "epochs")), end)


def _write(folder: Path, step: int, is_complete: bool = True) -> Path:
    checkpoint = folder / f"checkpoint-{step}"
    checkpoint.mkdir()
    (checkpoint / STATE_FILE).write_text('{"format": 2}')
    (checkpoint / "optimizer.pt").write_bytes(b"momenta")
    if is_complete:
        complete(checkpoint)
    return checkpoint


def _names(folder: Path) -> list[str]:
    return [path.name for path in list_checkpoints(folder)]


def test_torn_and_missing_files_are_named_and_passed_over(tmp_path: Path) -> None:
    checkpoints = {step: _write(tmp_path, step) for step in (4, 6, 8, 10)}
    (checkpoints[10] / MARKER_FILE).unlink()
    (checkpoints[8] / STATE_FILE).write_text("{}")
    (checkpoints[6] / "optimizer.pt").unlink()
    found = newest_complete(tmp_path)
    assert str(found.checkpoint).endswith("checkpoint-4")
    problems = [f"{Path(path).name}: {problem}" for path, problem in found.passed_over.items()]
    assert problems[0].startswith("checkpoint-10: complete.json is missing, so it is incomplete")
    assert problems[1].startswith("checkpoint-8: mixing.json is torn: it has 2 bytes instead of")
    assert problems[2] == "checkpoint-6: optimizer.pt is missing"
    (checkpoints[4] / STATE_FILE).write_text("{torn")  # of the right size, as far as anybody knows
    complete(checkpoints[4])
    assert find_problem(checkpoints[4]) == "mixing.json is torn"
    (checkpoints[4] / MARKER_FILE).write_text("[]")
    assert str(find_problem(checkpoints[4])).startswith("complete.json is torn")


def test_what_cannot_be_resumed_from_says_which_file_is_wrong_and_what_to_do(tmp_path: Path) -> None:
    def resume(checkpoint: Any) -> None:
        build(tmp_path).train(resume_from_checkpoint=checkpoint)

    with refused("resume_from_checkpoint"):
        resume(True)
    with refused("resume_from_checkpoint"):
        resume(str(tmp_path / "checkpoint-3"))
    build(tmp_path).train()
    (tmp_path / "checkpoint-8" / "rng_state.pth").write_bytes(b"torn")
    (tmp_path / "checkpoint-10" / MARKER_FILE).unlink()
    with pytest.raises(ValueError, match=r"rng_state.pth is torn.*The newest .* resumed from is .*checkpoint-4\."):
        resume(str(tmp_path / "checkpoint-8"))
    shutil.rmtree(tmp_path / "checkpoint-4")
    with refused("resume_from_checkpoint"):
        resume(True)
    build(tmp_path, save_only_model=True).train()
    with refused("resume_from_checkpoint"):
        resume(str(tmp_path / "checkpoint-8"))


def test_no_message_advises_what_loses_a_run(tmp_path: Path) -> None:
    """Whatever was asked for in vain: where there are checkpoints, a new run belongs elsewhere."""
    build(tmp_path / "run").train()
    with pytest.raises(ValueError, match=rf"resumed from is {tmp_path}/run/checkpoint-10\.$"):
        build(tmp_path / "run").train(resume_from_checkpoint="no such folder")
    for checkpoint in list_checkpoints(tmp_path / "run"):
        (checkpoint / MARKER_FILE).unlink()
    for resume in (True, str(tmp_path / "run" / "checkpoint-4"), str(tmp_path / "elsewhere")):
        with pytest.raises(ValueError, match=r"with another output_dir\.$"):
            build(tmp_path / "run").train(resume_from_checkpoint=resume)


def test_the_text_of_a_truth_value_is_one(tmp_path: Path) -> None:
    """`HfArgumentParser` gives text: `--resume_from_checkpoint True`."""
    command = ["--output_dir", str(tmp_path), "--resume_from_checkpoint", "True"]
    (args,) = HfArgumentParser(TrainingArguments).parse_args_into_dataclasses(command)
    build(tmp_path, max_steps=4).train()
    trainer = build(tmp_path, max_steps=5)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    assert trainer.ledger.clock()["step"].tolist() == [1, 2, 3, 4, 5]
    assert [as_request(text) for text in ("true", "False", "run", None)] == [True, False, "run", None]


def test_a_new_run_in_the_same_folder_supersedes_the_old_checkpoints(tmp_path, whole, caplog) -> None:
    build(tmp_path, seed=1).train()
    assert "checkpoint-10" not in caplog.text
    _kill(tmp_path, "steps", 20, resume=None)
    assert "checkpoint-10" in caplog.text
    found = newest_complete(tmp_path)
    assert found.checkpoint is None
    with refused("resume_from_checkpoint"):
        build(tmp_path).train(resume_from_checkpoint=True)
    with pytest.raises(ValueError, match=r"Beside it are checkpoint-4, .*checkpoint-10, of a run that"):
        build(tmp_path).train(resume_from_checkpoint=str(tmp_path / "checkpoint-11"))
    assert "Resumed from" not in caplog.text
    assert all("an earlier run" in problem for problem in found.passed_over.values())
    assert_same(go_on(build(tmp_path)), whole("steps")[0])


def test_going_on_earlier_or_from_elsewhere_supersedes_what_came_later(tmp_path: Path, whole: Whole, caplog) -> None:
    for name in ("first", "second"):
        build(tmp_path / name).train()
    _kill(tmp_path / "second", "steps", 8, resume=str(tmp_path / "first" / "checkpoint-8"))
    assert newest_complete(tmp_path / "second").checkpoint is None
    assert "checkpoint-8 (step 8 of 10)" in caplog.text
    assert str(newest_complete(tmp_path / "first").checkpoint).endswith("checkpoint-10")
    # The ledger is cut to step 4: the later checkpoints would leave a gap in it.
    _kill(tmp_path / "first", "steps", 8, resume=str(tmp_path / "first" / "checkpoint-4"))
    assert str(newest_complete(tmp_path / "first").checkpoint).endswith("checkpoint-4")
    assert_same(go_on(build(tmp_path / "first")), whole("steps")[0])


def test_the_best_and_the_newest_stay_and_a_torn_one_never_displaces_a_whole_one(tmp_path: Path) -> None:
    for step, is_complete in ((2, True), (4, False), (6, True), (8, False), (10, True)):
        newest = _write(tmp_path, step, is_complete)
    checkpoint_files.rotate(newest, 2, None)
    assert _names(tmp_path) == ["checkpoint-10", "checkpoint-6"]
    checkpoint_files.rotate(_write(tmp_path, 12), 1, str(tmp_path / "checkpoint-6"))
    assert _names(tmp_path) == ["checkpoint-12", "checkpoint-6"]
    for limit in (None, 0):
        checkpoint_files.rotate(tmp_path / "checkpoint-12", limit, None)
    assert len(_names(tmp_path)) == 2


def test_a_checkpoint_that_is_written_again_is_kept_until_it_is_whole(tmp_path: Path) -> None:
    checkpoint = _write(tmp_path, 2)
    whole = (checkpoint / STATE_FILE).read_text()
    checkpoint_files.begin_writing(checkpoint)
    (checkpoint / STATE_FILE).write_text("{to")
    aside = Path(str(newest_complete(tmp_path).checkpoint))  # for those who do not hold the folder
    assert (aside / STATE_FILE).read_text() == whole
    checkpoint_files.put_back(tmp_path)
    assert newest_complete(tmp_path).checkpoint == str(checkpoint)
    assert (checkpoint / STATE_FILE).read_text() == whole
    checkpoint_files.begin_writing(checkpoint)
    (checkpoint / STATE_FILE).write_text('{"new": 1}')
    complete(checkpoint)
    checkpoint_files.put_back(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint-2"]
    assert (checkpoint / STATE_FILE).read_text() == '{"new": 1}'


def test_a_stopped_run_goes_on_and_one_that_ended_does_with_a_larger_budget(tmp_path: Path, whole: Whole) -> None:
    def stop(state: Any, control: Any, **_: Any) -> None:
        if state.global_step == 6:
            control.should_training_stop = control.should_save = True

    build(tmp_path, callbacks=[On(step_end=stop)]).train()  # when the time on the cluster is over, say
    assert_same(go_on(build(tmp_path)), whole("steps")[0])
    longer = build(tmp_path, max_steps=12)
    longer.train(resume_from_checkpoint=True)
    assert longer.ledger.to_pandas()["step"].unique().tolist() == list(range(1, 13))
