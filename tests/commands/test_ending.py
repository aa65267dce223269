"""The last line of a run, and what stands before its first."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import EarlyStoppingCallback, TrainerCallback

from mixer import MixingTrainer
from mixer.tools.cli.ending import ending_of
from mixer.tools.cli.entry import main
from tests.commands.recipes import SAVING, write_recipe
from tests.helpers import On, arguments, build_model, three_streams

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
