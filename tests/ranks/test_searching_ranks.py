from pathlib import Path
from typing import Any

import optuna
import pandas as pd
import pytest

from mixer import Ledger, LossChange, MixingTrainer
from tests.helpers import Tokens, build_model
from tests.mixer.trainer.runs import make
from tests.ranks.launch import message_of
from tests.ranks.warm import on_ranks

TRIALS = [{"learning_rate": rate, "per_device_train_batch_size": size} for rate, size in ((0.3, 4), (0.01, 3))]


def new_trainer(folder: Path, **options: Any) -> MixingTrainer:
    own = {"eval_dataset": {"math": Tokens(5, 8), "code": Tokens(4, 9)}, "model_init": lambda: build_model("llama")}
    own |= {"train_dataset": {"math": Tokens(20, 1), "code": Tokens(11, 2)}, "mixing": LossChange()}
    return make(folder, None, **own, **{"max_steps": 6, "eval_strategy": "steps", "eval_steps": 3, **options})


class PrunesFirst(optuna.pruners.BasePruner):
    def prune(self, study: Any, trial: Any) -> bool:
        return bool(trial.number == 0)


def search(folder: Path, trials: list[dict[str, Any]], **options: Any) -> Any:
    return new_trainer(folder).hyperparameter_search(
        hp_space=lambda trial: trials[trial.number],
        compute_objective=lambda metrics: metrics["eval_math_loss"],
        n_trials=len(trials),
        backend="optuna",
        **options,
    )


def searched(folder: Path) -> dict[str, Any]:
    best = search(folder / "search", TRIALS)
    for number, options in enumerate(TRIALS):
        new_trainer(folder / f"fresh-{number}", **options).train()
    pruned = search(folder / "pruned", TRIALS, pruner=PrunesFirst())
    refused = message_of(lambda: search(folder / "refused", [{"average_tokens_across_devices": False}]))
    return {"best": best and [best.run_id, best.objective], "pruned": pruned and pruned.run_id, "refused": refused}


@pytest.mark.full
def test_two_ranks_search_as_new_trainers_would_train(tmp_path: Path) -> None:
    main, other = (rank["searched"] for rank in on_ranks(tmp_path, searched))
    losses = []
    for number in range(len(TRIALS)):
        trial = Ledger(tmp_path / "search" / f"run-{number}" / "ledger")
        fresh = Ledger(tmp_path / f"fresh-{number}" / "ledger")
        pd.testing.assert_frame_equal(trial.to_pandas(), fresh.to_pandas())
        losses.append(trial.evaluations().query("stream == 'math'")["loss"].iloc[-1])
    assert main["best"] == [str(losses.index(min(losses))), pytest.approx(min(losses))]
    assert other["best"] is None
    assert [main["pruned"], other["pruned"]] == ["1", None]
    whole, pruned = (Ledger(tmp_path / "pruned" / f"run-{number}" / "ledger") for number in (1, 0))
    assert pruned.clock()["step"].tolist() == [1, 2, 3]
    pd.testing.assert_frame_equal(whole.to_pandas(), fresh.to_pandas())
    assert "average_tokens_across_devices=False weights" in main["refused"]
    assert main["refused"] == other["refused"]
