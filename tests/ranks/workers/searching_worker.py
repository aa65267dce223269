"""What each rank does in the test of hyperparameter search: `torchrun ... searching_worker.py FOLDER`."""

import sys
from pathlib import Path
from typing import Any

import optuna

from mixer import LossChange, MixingTrainer
from tests.helpers import Tokens, arguments, build_model
from tests.ranks.launch import end_with, message_of

TRIALS: list[dict[str, Any]] = [
    {"learning_rate": 0.3, "per_device_train_batch_size": 4},
    {"learning_rate": 0.01, "per_device_train_batch_size": 3},
]


def new_trainer(folder: Path, **options: Any) -> MixingTrainer:
    own: dict[str, Any] = {"max_steps": 6, "eval_strategy": "steps", "eval_steps": 3, **options}
    return MixingTrainer(
        None,
        arguments(folder, **own),
        train_dataset={"math": Tokens(20, 1), "code": Tokens(11, 2)},
        eval_dataset={"math": Tokens(5, 8), "code": Tokens(4, 9)},
        mixing=LossChange(),
        model_init=lambda: build_model("llama"),
    )


class PrunesFirst(optuna.pruners.BasePruner):
    """Prunes the first trial at its first evaluation."""

    def prune(self, study: Any, trial: Any) -> bool:
        return bool(trial.number == 0)


def search(folder: Path, trials: list[dict[str, Any]], **options: Any) -> Any:
    """Runs the trials; gives the best one on the main rank."""
    return new_trainer(folder).hyperparameter_search(
        hp_space=lambda trial: trials[trial.number],
        compute_objective=lambda metrics: metrics["eval_math_loss"],
        n_trials=len(trials),
        backend="optuna",
        **options,
    )


if __name__ == "__main__":
    target = Path(sys.argv[1])
    best = search(target / "search", TRIALS)
    for number, options in enumerate(TRIALS):
        new_trainer(target / f"fresh-{number}", **options).train()
    pruned = search(target / "pruned", TRIALS, pruner=PrunesFirst())
    refused = message_of(lambda: search(target / "refused", [{"average_tokens_across_devices": False}]))
    results = {
        "best": None if best is None else [best.run_id, best.objective],
        "pruned": None if pruned is None else pruned.run_id,
        "refused": refused,
    }
    end_with(results, target, "searching")
