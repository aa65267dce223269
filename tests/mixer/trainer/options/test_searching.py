"""Hyperparameter search: each trial is the run that a new trainer with its arguments would do."""

from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest
from transformers import TrainerCallback

from mixer import Ledger, LossChange, MixingTrainer, Stream
from mixer.trainer.checkpointing.files import find_problem
from replay import ReplayBuffer, ReplayRatio
from tests.helpers import Tokens, arguments, build_model

optuna.logging.set_verbosity(optuna.logging.WARNING)


def _sets() -> dict[str, Tokens]:
    return {"math": Tokens(5, 8), "code": Tokens(4, 9)}


def _streams() -> dict[str, Tokens]:
    return {"math": Tokens(20, 1), "code": Tokens(11, 2)}


def _trainer(folder: Path, data: Any = None, mixing: Any = None, callbacks: Any = None, **options: Any) -> Any:
    own: dict[str, Any] = {"per_device_train_batch_size": 4, "max_steps": -1, "num_train_epochs": 1}
    own |= {"eval_strategy": "steps", "eval_steps": 3}
    batch_size = options.pop("batch_size", None)
    return MixingTrainer(
        None,
        arguments(folder, **{**own, **options}),
        train_dataset=_streams() if data is None else data,
        eval_dataset=_sets(),
        mixing=LossChange() if mixing is None else mixing,
        batch_size=batch_size,
        model_init=lambda: build_model("llama"),
        callbacks=callbacks,
    )


TRIALS: list[dict[str, Any]] = [
    {"learning_rate": 0.3, "per_device_train_batch_size": 4, "num_train_epochs": 1, "seed": 3},
    {"learning_rate": 0.01, "per_device_train_batch_size": 8, "num_train_epochs": 2, "seed": 4},
    {"learning_rate": 0.1, "per_device_train_batch_size": 5, "num_train_epochs": 1, "seed": 3},
]


def _space(trial: Any) -> dict[str, Any]:
    return TRIALS[trial.number]


def _search(trainer: Any, num_trials: int = 3, space: Any = _space, **options: Any) -> Any:
    return trainer.hyperparameter_search(hp_space=space, n_trials=num_trials, backend="optuna", **options)


def _math_loss(metrics: dict[str, float]) -> float:
    return metrics["eval_math_loss"]


def _assert_same_ledgers(folder: Path, expected: Ledger) -> None:
    mine = Ledger(folder)
    for table in ("to_pandas", "clock", "evaluations", "memories"):
        pd.testing.assert_frame_equal(getattr(mine, table)(), getattr(expected, table)())


class _MoreMath(TrainerCallback):  # type: ignore[misc]
    """Takes the mixture into its own hands half-way."""

    trainer: Any

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 3:
            self.trainer.mixing.set_weights({"math": 9, "code": 1})
            self.trainer.mixing.set_batch_size(3)


def _with_more_math(folder: Path, **options: Any) -> Any:
    callback = _MoreMath()
    callback.trainer = _trainer(folder, callbacks=[callback], **options)
    return callback.trainer


def test_every_trial_is_the_run_of_a_new_trainer(tmp_path: Path) -> None:
    trainer = _with_more_math(tmp_path / "search", save_strategy="steps", save_steps=2)
    best = _search(trainer, compute_objective=_math_loss)
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
        memory = ReplayBuffer(6, "Reservoir", streams=["math"])
        data = [Stream("math", Tokens(20, 1)), Stream("memory", memory)]
        return _trainer(folder, data, ReplayRatio(0.25), **options)

    # A buffer draws by the key that it began with, whatever seed a trial has.
    trials = [{name: value for name, value in changes.items() if name != "seed"} for changes in TRIALS]
    _search(with_memory(tmp_path / "search"), 2, lambda trial: trials[trial.number], compute_objective=_math_loss)
    for number, changes in enumerate(trials[:2]):
        fresh = with_memory(tmp_path / f"fresh-{number}", **changes)
        fresh.train()
        assert len(fresh.ledger.memories())
        _assert_same_ledgers(tmp_path / "search" / f"run-{number}" / "ledger", fresh.ledger)
    assert not (tmp_path / "search" / "search-start").exists()


class _PrunesAt(optuna.pruners.BasePruner):
    """Prunes some trials at their second evaluation."""

    def __init__(self, *numbers: int):
        self.numbers = numbers

    def prune(self, study: Any, trial: Any) -> bool:
        return trial.number in self.numbers and trial.last_step >= 6


def test_a_trial_that_is_pruned_leaves_nothing_to_the_next(tmp_path: Path) -> None:
    trainer = _with_more_math(tmp_path / "search")
    _search(trainer, compute_objective=_math_loss, pruner=_PrunesAt(0, 2))
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
    _search(trainer, 1, compute_objective=_math_loss)
    first = trainer.ledger.clock()
    assert trainer.ledger.folder == tmp_path / "run-0" / "ledger"
    _search(trainer, 1, space=lambda trial: TRIALS[1], compute_objective=_math_loss)
    pd.testing.assert_frame_equal(Ledger(tmp_path / "run-0" / "ledger-1").clock(), first)
    pd.testing.assert_frame_equal(Ledger(tmp_path / "ledger").clock(), before)
    trainer.train()
    assert trainer.ledger.folder == tmp_path / "ledger"
    pd.testing.assert_frame_equal(Ledger(tmp_path / "ledger-1").clock(), before)


def test_trials_with_names_have_folders_of_those_names(tmp_path: Path) -> None:
    _search(_trainer(tmp_path), 2, compute_objective=_math_loss, hp_name=lambda trial: f"try-{trial.number}")
    assert [len(Ledger(tmp_path / f"try-{number}" / "ledger").clock()) for number in (0, 1)] == [8, 8]


def test_the_objective_of_several_sets_is_their_mean_loss_if_nothing_is_said(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    best = _search(trainer, 1)
    logged = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    assert best.objective == pytest.approx(logged[-1])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_steps": 0}, "max_steps=0 trains nothing"),
        ({"gradient_accumulation_steps": 2}, "conflicts with gradient_accumulation_steps=2"),
        ({"train_sampling_strategy": "batch_rebalance"}, "batch_rebalance"),
        ({"num_train_epochs": 0.0}, "num_train_epochs must be above 0"),
    ],
)
def test_a_trial_is_refused_what_a_trainer_is(changes: dict[str, Any], message: str, tmp_path: Path) -> None:
    options = {"batch_size": 8} if "gradient_accumulation_steps" in changes else {}
    with pytest.raises(ValueError, match=message):
        _trainer(tmp_path / "new", **{**options, **changes})
    trainer = _trainer(tmp_path / "search", **options)
    with pytest.raises(ValueError, match=message):
        _search(trainer, 1, space=lambda trial: changes, compute_objective=_math_loss)


def test_trials_at_once_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="n_jobs=2 would run trials at once"):
        _search(_trainer(tmp_path), n_jobs=2)


def test_metrics_and_losses_of_several_sets_are_not_added_up(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    trainer.compute_metrics = lambda prediction: {"accuracy": 0.5}
    with pytest.raises(ValueError, match=r"compute_objective is missing.*\['math', 'code'\]"):
        _search(trainer, 1)
