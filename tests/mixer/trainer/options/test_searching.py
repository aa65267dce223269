"""Hyperparameter search: each trial is the run that a new trainer with its arguments would do."""

from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest

from mixer import Ledger, LossChange, Stream
from mixer.checkpoint.checkpoint_files import find_problem
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import On, Tokens, build_model
from tests.mixer.trainer.runs import make
from tests.refusals import refused

optuna.logging.set_verbosity(optuna.logging.WARNING)


def _trainer(folder: Path, data: Any = None, **options: Any) -> Any:
    own: dict[str, Any] = {"per_device_train_batch_size": 4, "max_steps": -1, "num_train_epochs": 1}
    own |= {"train_dataset": data or {"math": Tokens(20, 1), "code": Tokens(11, 2)}}
    own |= {"eval_strategy": "steps", "eval_steps": 3, "mixing": ReplayRatio(0.25) if data else LossChange()}
    own |= {"eval_dataset": {"math": Tokens(5, 8), "code": Tokens(4, 9)}, **options}
    return make(folder, None, model_init=lambda: build_model("llama"), **own)


TRIALS: list[dict[str, Any]] = [
    {"learning_rate": 0.3, "per_device_train_batch_size": 4, "num_train_epochs": 1, "seed": 3},
    {"learning_rate": 0.01, "per_device_train_batch_size": 8, "num_train_epochs": 2, "seed": 4},
    {"learning_rate": 0.1, "per_device_train_batch_size": 5, "num_train_epochs": 1, "seed": 3},
]


def _search(trainer: Any, trials: list[dict[str, Any]], is_plain: bool = False, **options: Any) -> Any:
    own = {} if is_plain else {"compute_objective": lambda metrics: metrics["eval_math_loss"]}
    sizes = {"n_trials": len(trials), "backend": "optuna"}
    return trainer.hyperparameter_search(lambda trial: trials[trial.number], **own, **sizes, **options)


def _assert_same_ledgers(folder: Path, expected: Ledger) -> None:
    mine = Ledger(folder)
    for table in ("to_pandas", "clock", "evaluations", "memories"):
        pd.testing.assert_frame_equal(getattr(mine, table)(), getattr(expected, table)())


def _with_more_math(folder: Path, **options: Any) -> Any:
    def change(state: Any, **_: Any) -> None:
        if state.global_step == 3:
            trainer.mixing.set_weights({"math": 9, "code": 1})
            trainer.mixing.set_batch_size(3)

    trainer = _trainer(folder, callbacks=[On(step_end=change)], **options)
    return trainer


def test_every_trial_is_the_run_of_a_new_trainer(tmp_path: Path) -> None:
    trainer = _with_more_math(tmp_path / "search", save_strategy="steps", save_steps=4)
    best = _search(trainer, TRIALS)
    losses = []
    for number, changes in enumerate(TRIALS):
        fresh = _with_more_math(tmp_path / f"fresh-{number}", **changes)
        fresh.train()
        folder = tmp_path / "search" / f"run-{number}"
        _assert_same_ledgers(folder / "ledger", fresh.ledger)
        losses.append(Ledger(folder / "ledger").evaluations().query("stream == 'math'")["loss"].iloc[-1])
        checkpoints = sorted(folder.glob("checkpoint-*"))
        assert checkpoints
        assert [find_problem(checkpoint) for checkpoint in checkpoints] == [None] * len(checkpoints)
    assert len(set(losses)) == 3
    assert (best.run_id, best.objective) == (str(losses.index(min(losses))), pytest.approx(min(losses)))
    assert not (tmp_path / "search" / "ledger").exists()


def test_what_a_buffer_remembers_stays_in_its_trial(tmp_path: Path) -> None:
    def with_memory(folder: Path, **options: Any) -> Any:
        memory = Stream("memory", ReplayBuffer(6, "Reservoir", streams=["math"]))
        return _trainer(folder, data=[Stream("math", Tokens(20, 1)), memory], **options)

    # A buffer draws by the key that it began with, whatever seed a trial has.
    trials = [{name: value for name, value in changes.items() if name != "seed"} for changes in TRIALS[:2]]
    _search(with_memory(tmp_path / "search"), trials)
    fresh = with_memory(tmp_path / "fresh", **trials[1])
    fresh.train()
    assert len(fresh.ledger.memories())
    _assert_same_ledgers(tmp_path / "search" / "run-1" / "ledger", fresh.ledger)
    assert not (tmp_path / "search" / "search-start").exists()


class _PrunesAt(optuna.pruners.BasePruner):
    def __init__(self, *numbers: int):
        self.numbers = numbers

    def prune(self, study: Any, trial: Any) -> bool:
        return trial.number in self.numbers and trial.last_step >= 6


def test_a_trial_that_is_pruned_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    trainer = _with_more_math(tmp_path / "search")
    _search(trainer, TRIALS, pruner=_PrunesAt(0, 2))
    fresh = _with_more_math(tmp_path / "fresh", **TRIALS[1])
    fresh.train()
    _assert_same_ledgers(tmp_path / "search" / "run-1" / "ledger", fresh.ledger)
    for number in (0, 2):  # what they did up to then is there
        pruned = Ledger(tmp_path / "search" / f"run-{number}" / "ledger")
        assert pruned.clock()["step"].tolist() == [1, 2, 3, 4, 5, 6]
        assert pruned.evaluations()["step"].tolist() == [3, 3, 6, 6]
    assert not trainer.is_in_train
    num_evaluations = len(trainer.ledger.evaluations())
    trainer.evaluate()  # is none of the run that was pruned
    assert len(trainer.ledger.evaluations()) == num_evaluations


def test_searches_and_runs_after_a_search_have_ledgers_of_their_own(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    trainer.train()
    before = trainer.ledger.clock()
    _search(trainer, TRIALS[:1])
    first = trainer.ledger.clock()
    assert trainer.ledger.folder == tmp_path / "run-0" / "ledger"
    _search(trainer, TRIALS[1:2])
    pd.testing.assert_frame_equal(Ledger(tmp_path / "run-0" / "ledger-1").clock(), first)
    pd.testing.assert_frame_equal(Ledger(tmp_path / "ledger").clock(), before)
    trainer.train()
    assert trainer.ledger.folder == tmp_path / "ledger"
    pd.testing.assert_frame_equal(Ledger(tmp_path / "ledger-1").clock(), before)


def test_names_of_trials_name_folders_and_the_objective_is_the_mean_loss_if_nothing_is_said(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    best = _search(trainer, TRIALS[:1], True, hp_name=lambda trial: f"try-{trial.number}")
    assert len(Ledger(tmp_path / "try-0" / "ledger").clock()) == 8
    logged = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert best.objective == pytest.approx(logged[-1])


@pytest.mark.parametrize(
    ("changes", "option"),
    [({"gradient_accumulation_steps": 2}, "batch_size"), ({"num_train_epochs": 0.0}, "num_train_epochs")],
)
def test_a_trial_is_refused_what_a_trainer_is(changes: dict[str, Any], option: str, tmp_path: Path) -> None:
    with refused(option):
        _search(_trainer(tmp_path, batch_size=8), [changes])


def test_a_search_that_cannot_be_is_refused(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    with refused("n_jobs"):
        _search(trainer, TRIALS, n_jobs=2)
    trainer.compute_metrics = lambda prediction: {"accuracy": 0.5}
    with refused("compute_objective"):
        _search(trainer, TRIALS, True)
