"""Where a run is while it lasts, its last line, and what stands before its first."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from transformers import EarlyStoppingCallback, TrainerCallback

from mixer import MixingTrainer
from mixer.checkpoint.lock import FolderLock
from mixer.tools.cli.entry import main
from mixer.tools.cli.train import ending_of
from mixer.tools.cli.watch import place_of
from mixer.tools.records.run import Run
from tests.commands.recipes import SAVING, write_recipe
from tests.helpers import On, arguments, build_model, three_streams
from tests.mixer.checkpoint.test_folder_lock import held_elsewhere
from tests.mixer.ledger.writing import begin, write

QUIET = """
import logging, sys, warnings
from mixer.tools.cli import entry
from mixer.tools.cli.entry import main
def command(words):
    warnings.warn("an option is deprecated", FutureWarning)
    warnings.warn("a value is odd")
    logger = logging.getLogger("DeepSpeed")
    logger.warning("Setting accelerator to CPU. If you have GPU")
    logger.warning("another")
entry._run = command
main([])
"""


def test_the_last_line_names_what_ended_the_run_its_best_checkpoint_and_the_next_command(tmp_path, capsys) -> None:
    recipe = write_recipe(tmp_path, {"save_strategy": "steps", "save_steps": 2, "load_best_model_at_end": True})
    main(["train", recipe])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.startswith("mixer: The run ended with its budget, 4/4 steps. Best checkpoint: ")
    assert "with loss " in last
    assert last.endswith(f"which is the saved model. Next: mixer report {tmp_path / 'run'}")


def test_without_checkpoints_of_evaluations_no_best_one_is_named(tmp_path, capsys) -> None:
    main(["train", write_recipe(tmp_path), *SAVING, "4", "--budget.samples", "20", "--training.max_steps", "-1"])
    last = capsys.readouterr().err.splitlines()[-1]
    assert last == f"mixer: The run ended with its budget, 20/20 samples. Next: mixer report {tmp_path / 'run'}"


@pytest.mark.parametrize(
    ("callback", "told"),
    [
        (EarlyStoppingCallback(1, 100.0), "early, at 2/9 steps, by early stopping, after 1 evaluations without"),
        (
            On(step_end=lambda state, control, **_: setattr(control, "should_training_stop", True)),
            "at 1/9 steps, by a callback",
        ),
    ],
)
def test_a_run_that_was_stopped_names_what_stopped_it(tmp_path: Path, callback: TrainerCallback, told: str) -> None:
    options = {"max_steps": 9, "eval_strategy": "steps", "eval_steps": 1, "metric_for_best_model": "loss"}
    args = arguments(tmp_path, **options, save_strategy="steps", save_steps=1, load_best_model_at_end=True)
    streams = three_streams()
    trainer = MixingTrainer(
        build_model("llama"), args, train_dataset=streams, eval_dataset=streams, callbacks=[callback]
    )
    trainer.train()
    assert told in ending_of(trainer)


def test_what_other_packages_say_of_their_future_does_not_open_a_command() -> None:
    done = subprocess.run([sys.executable, "-c", QUIET], capture_output=True, text=True, check=True)
    assert "deprecated" not in done.stderr
    assert "Setting accelerator" not in done.stderr
    assert "a value is odd" in done.stderr
    assert "another" in done.stderr
    asked = subprocess.run([sys.executable, "-W", "default", "-c", QUIET], capture_output=True, text=True, check=True)
    assert "deprecated" in asked.stderr


def test_it_shows_the_newest_run_once(tmp_path: Path, printed: Callable[..., str]) -> None:
    for name in ("01-first", "02-second"):
        ledger = begin(tmp_path / name, 2, 50)
        ledger.record_evaluation(50, {"stream-0": 1.5, "stream-1": 2.5})
        ledger.flush()
        for path in (tmp_path / name / "ledger").rglob("*"):
            os.utime(path, (1e9 + int(name[:2]), 1e9 + int(name[:2])))
    text = printed("watch", tmp_path)
    for part in (
        "02-second: running",
        "25%, step 50, epoch 0.50, 150 samples",
        "loss 3.500",
        "gradient 0.500",
        "2.500",
    ):
        assert part in text
    told = json.loads(printed("watch", tmp_path, "--json"))
    assert (told["state"], told["clock"]["gradient_norm"], told["eval_loss"]["last"]) == ("running", 0.5, 2.0)
    assert [stream["share"] for stream in told["streams"]] == pytest.approx([1 / 3, 2 / 3])
    ledger.end("stopped", "SIGTERM")
    assert (place_of(Run(tmp_path / "02-second"))["state"], place_of(Run(tmp_path / "02-second"))["reason"]) == (
        "stopped",
        "SIGTERM",
    )


def test_the_time_left_is_by_that_since_the_run_began_or_resumed(tmp_path: Path) -> None:
    def written_at(names: str, seconds: float) -> None:
        for path in (tmp_path / "ledger").glob(names):
            os.utime(path, (seconds, seconds))

    ledger = begin(tmp_path, 2, 50)
    ledger.flush()
    written_at("ledger.json", 1e9)
    written_at("clock/*", 1e9 + 100)
    assert place_of(Run(tmp_path))["seconds_left"] == pytest.approx(300.0)  # whatever was done in it, not only training
    ledger.begin(50, {"policy": "Uniform"})
    write(ledger, range(51, 101), 2)
    ledger.flush()
    written_at("clock/part-*", 2e9 - 10)
    written_at("ledger.json", 2e9)
    written_at("clock/tail-*", 2e9 + 50)
    assert place_of(Run(tmp_path))["seconds_left"] == pytest.approx(100.0)  # a step a second since it goes on


def test_a_killed_run_has_ended_without_finishing(tmp_path: Path) -> None:
    begin(tmp_path, 2, 50).flush()
    with held_elsewhere(tmp_path):
        assert place_of(Run(tmp_path))["state"] == "running"
    place = place_of(Run(tmp_path))
    assert (place["state"], place["seconds_left"]) == ("killed", None)
    lock = FolderLock(tmp_path)  # another run goes on there, in this process
    lock.acquire()
    assert place_of(Run(tmp_path))["state"] == "running"
    lock.release()
