"""Batch sizes that change, on one rank and on two; among them the script of the published extension."""

import itertools
import json
import runpy
import sys
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
from transformers import TrainerCallback

from mixer import LossChange, schedules
from tests.helpers import Tokens, weights_of
from tests.mixer.trainer.runs import make, train
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched, some

SCRIPT = Path(__file__).parents[1] / "commands" / "scripts" / "adaptive_batch_size.py"
SCRIPTS = {"plain": [], "dropping": ["--dataloader_drop_last"], "workers": ["--dataloader_num_workers", "2"]}
# Rows of a rank's forwards in each of ten epochs over ten samples, by ranks and `dataloader_drop_last`, by hand: the
# size is one more after every fifth step, and a rest smaller than it comes as it is, or is dropped.
EPOCHS = {
    (1, False): [
        *[[1, 1, 1, 1, 1, 2, 2, 1], [2, 2, 3, 3], [3, 3, 3, 1], [4, 4, 2], [4, 5, 1]],
        *[[5, 5], [5, 5], [6, 4], [6, 4], [7, 3]],
    ],
    (1, True): [[1, 1, 1, 1, 1, 2, 2], [2, 2, 2, 3], [3, 3, 3], [3, 4], [4, 4], [4, 4], [5, 5], [5, 5], [5], [6]],
    (2, False): [[1] * 5, [2, 2, 1], [2, 2, 1], [3, 2], [3, 2], [4, 1], [4, 1], [4, 1], [5], [5]],
    (2, True): [[1] * 5, [2, 2], [2, 2], [2, 3], [3], [3], [3], [3], [4], [4]],
}


def script(name: str, folder: Path) -> Any:
    """Runs the script of the published extension, as it is but for its import; gives what it showed."""
    options = {"output_dir": folder / name, "logging_steps": 1, "save_strategy": "no", "num_train_epochs": 10}
    options |= {"per_device_train_batch_size": 1, "use_cpu": True, "report_to": "none", "disable_tqdm": True}
    words = [word for option, value in options.items() for word in (f"--{option}", str(value))]
    with mock.patch.object(sys, "argv", [str(SCRIPT), *words, *SCRIPTS[name]]):
        return runpy.run_path(str(SCRIPT), run_name="__main__")["shown"]


def assert_shown(shown: dict[str, Any], num_ranks: int, name: str) -> None:
    """Of each step: its number, coverage (twice), epoch, samples seen, samples there are."""
    lines: list[Any] = []
    seen, epochs = 0, EPOCHS[num_ranks, name == "dropping"]
    for epoch in epochs:
        for of_epoch in itertools.accumulate(epoch):
            now, coverage = seen + num_ranks * of_epoch, num_ranks * of_epoch / 10
            lines.append(pytest.approx([len(lines) + 1, coverage, coverage, now / 10, now, 10]))
        seen += num_ranks * sum(epoch)
    assert shown["lines"] == lines
    assert shown["rows"] == [rows for epoch in epochs for rows in epoch]


def by_hand(folder: Path) -> list[str]:
    """The errors of a size that only one rank sets, and of one with less than a sample a rank."""

    class Setting(TrainerCallback):
        def __init__(self, size: int, every_rank: bool):
            self.size, self.every_rank = size, every_rank

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if self.every_rank or args.process_index == 1:
                trainer.mixing.set_batch_size(self.size)

    messages = []
    for size, every_rank in ((6, False), (1, True)):
        own = {"train_dataset": Tokens(40, 1), "callbacks": [Setting(size, every_rank)]}
        trainer = make(folder, per_device_train_batch_size=2, **own)
        messages.append(message_of(trainer.train))
    return messages


def by_schedule(folder: Path) -> dict[str, Any]:
    """A run whose sizes follow the loss, the gradient and the learning rate."""
    options = {"max_steps": -1, "num_train_epochs": 3, "per_device_train_batch_size": 3, "max_grad_norm": 1.0}
    schedule = schedules.SmoothedLossChange(
        0.02, 0.5, 1, factor=1.4, otherwise=0.7, gradient_norm=True, initial=8, maximum=30, learning_rate="sqrt"
    )
    streams = {"a": Tokens(40, 1), "b": Tokens(23, 2), "c": Tokens(11, 3)}
    options |= {"batch_size": schedule, "mixing": LossChange(num_warmup_observations=1), "optim": "adamw_torch"}
    trainer = train(folder / "schedule", train_dataset=streams, **options)
    state = [weights_of(trainer.model).tolist(), trainer.mixing.clock.state_dict(), trainer.mixing.state_dict()]
    clock = trainer.ledger.clock() if trainer.is_world_process_zero() else None
    return {"state": json.dumps(state), "clock": clock}


results = launched(
    *(partial(script, "plain"), partial(script, "dropping"), by_hand, by_schedule), rare=[partial(script, "workers")]
)


@pytest.mark.parametrize("name", ["plain", "dropping"])
def test_the_published_script_shows_its_coverage_epochs_and_sizes(tmp_path: Path, name: str) -> None:
    assert_shown(script(name, tmp_path), 1, name)


@pytest.mark.parametrize("name", some(SCRIPTS, ["plain", "dropping"]))
def test_so_it_does_on_two_ranks(results: Results, name: str) -> None:
    for result in results:
        assert_shown(result[name], 2, name)


def test_a_size_that_one_rank_sets_alone_and_one_below_the_ranks_are_refused_on_both(results: Results) -> None:
    for result in results:
        assert "DisagreementError: The ranks planned different steps" in result["by_hand"][0]
        assert "1 samples in all are fewer than the 2 ranks" in result["by_hand"][1]


def test_both_ranks_decide_alike(results: Results) -> None:
    first, second = (result["by_schedule"] for result in results)
    assert first["state"] == second["state"]
    assert first["clock"]["batch_size"].nunique() > 3
    assert first["clock"]["samples"].tolist()[-1] == 3 * 74
