"""Runs that a signal ends: saved after the step in progress, and gone on with as if it had never come."""

import multiprocessing
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from mixer.checkpoint.checkpoint_files import find_problem, list_checkpoints
from mixer.distributed.signals import RunInterrupted, RunTerminated
from mixer.ledger.folder import read_note
from tests.helpers import On
from tests.mixer.checkpoint.test_resume import assert_same, build, go_on
from tests.ranks.warm import some


@pytest.fixture(autouse=True)
def _as_in_a_terminal() -> Iterator[None]:
    """Handles signals as Python does in the foreground: what started the tests may have had them ignored."""
    unhandled: dict[int, Any] = dict.fromkeys((signal.SIGTERM, signal.SIGUSR1), signal.SIG_DFL)
    unhandled[signal.SIGINT] = signal.default_int_handler
    before = {number: signal.signal(number, handler) for number, handler in unhandled.items()}
    yield
    assert {number: signal.getsignal(number) for number in unhandled} == unhandled, "put back"
    for number, handler in before.items():
        signal.signal(number, handler)


def signal_at(event: str, step: int, *numbers: signal.Signals) -> On:
    def send(state: Any, **_: Any) -> None:
        for number in (numbers or (signal.SIGTERM,)) if state.global_step == step else ():
            os.kill(os.getpid(), number)

    return On(**{event: send})


# What each run does, when the signal comes, and after which update it ends.
CASES = {
    "before the first step": ("steps", "train_begin", 0, 1),
    "in a step": ("changing", "step_begin", 5, 7),
    "at an epoch's last step": ("epochs", "step_begin", 3, 5),
    "under evaluation": ("steps", "prediction_step", 2, 3),
    "while a checkpoint is written": ("steps", "save", 4, 5),
    "at an epoch's end": ("saved by epoch", "epoch_end", 5, 6),
    "where only the best is saved": ("best", "step_begin", 4, 6),
}


@pytest.mark.parametrize("case", some(CASES, ("in a step", "while a checkpoint is written", "at an epoch's end")))
def test_a_run_is_saved_after_the_step_and_goes_on_as_if_nothing_had_been(case, tmp_path, whole) -> None:
    name, event, step, last = CASES[case]
    options = {"save_strategy": "best", "metric_for_best_model": "loss"} if name == "best" else {}
    trainer = build(tmp_path, name, [signal_at(event, step)], **options)
    with pytest.raises(RunTerminated, match=rf"SIGTERM ended the run after step {last}; .*checkpoint-{last} ") as end:
        trainer.train()
    assert end.value.code == 143
    assert list_checkpoints(tmp_path)[0].name == f"checkpoint-{last}"
    assert find_problem(tmp_path / f"checkpoint-{last}") is None
    note = read_note(tmp_path)
    assert (note["ended"], note["reason"]) == ("stopped", "SIGTERM")
    resumed = go_on(build(tmp_path, name, **options))
    if not options:
        assert_same(resumed, whole(name)[0])
    assert resumed["state"][0] == 10 or name == "changing"
    assert read_note(tmp_path)["ended"] == "finished"
    assert "reason" not in read_note(tmp_path)


SIGINT, SIGUSR1, ALL = signal.SIGINT, signal.SIGUSR1, [f"checkpoint-{step}" for step in (10, 8, 4)]


@pytest.mark.parametrize(
    ("at", "strategy", "error", "message", "left", "note"),
    [
        # As from a terminal, and passed on by a launcher.
        (("step_begin", 2, SIGINT, SIGINT), "steps", RunInterrupted, "run after step 4", ["checkpoint-4"], "stopped"),
        (("step_begin", 2, SIGUSR1), "no", RunTerminated, r"run after step 4\. Nothing was saved", [], "stopped"),
        (("train_end", 10), "steps", RunTerminated, "arrived after the run had finished, at step 10", ALL, "finished"),
    ],
)
def test_what_is_saved_and_said(at, strategy, error, message, left, note, tmp_path) -> None:
    with pytest.raises(error, match=message):
        build(tmp_path, callbacks=[signal_at(*at)], save_strategy=strategy).train()
    assert [path.name for path in list_checkpoints(tmp_path)] == left
    assert read_note(tmp_path)["ended"] == note


def test_a_second_interrupt_ends_the_run_at_once(tmp_path, monkeypatch, capsys) -> None:
    hours = iter(range(0, 10**9, 3600))
    monkeypatch.setattr("mixer.distributed.signals.time", type("Clock", (), {"monotonic": lambda: next(hours)}))
    with pytest.raises(KeyboardInterrupt) as end:
        build(tmp_path, callbacks=[signal_at("step_begin", 2, signal.SIGINT, signal.SIGINT)]).train()
    assert not isinstance(end.value, RunInterrupted)
    assert not list_checkpoints(tmp_path)
    assert "with a checkpoint. Another one ends it at" in capsys.readouterr().err
    assert read_note(tmp_path)["reason"] == "KeyboardInterrupt"


@pytest.mark.full
def test_workers_that_get_the_signal_too_serve_the_run_to_its_end(tmp_path: Path) -> None:
    def signal_all(state: Any, **_: Any) -> None:
        for process in multiprocessing.active_children() if state.global_step == 2 else ():
            os.kill(process.pid or 0, signal.SIGTERM)  # as a scheduler does, to all processes of a job
            os.kill(os.getpid(), signal.SIGTERM)

    trainer = build(tmp_path, callbacks=[On(step_begin=signal_all)], dataloader_num_workers=1)
    with pytest.raises(RunTerminated, match="SIGTERM ended the run"):
        trainer.train()
    assert find_problem(list_checkpoints(tmp_path)[-1]) is None
