"""What holds of every method: killed runs end as others do, and forgetting is less than without it."""

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import TrainingArguments

from mixer import MixingTrainer
from replay import ReplayBuffer
from tasks.continual.continual import ContinualRun
from tasks.methods import ERACE, SCR, SI, FromScratch, ICaRL, LwF, OnlineEWC, gdumb, nearest_mean
from tasks.metrics import all_metrics
from tasks.mlp import mlp
from tasks.sequences import by_class
from tasks.sources import digits
from tests.helpers import arguments, weights_of
from tests.mixer.trainer.checkpointing.test_resume import Instants, Killed
from tests.tasks.methods.runs import CASES, build, data


@pytest.mark.parametrize("name", CASES)
def test_a_run_killed_in_the_middle_of_a_task_ends_as_one_that_was_not(name: str, tmp_path: Path) -> None:
    whole = build(tmp_path / "whole", name, instants := Instants())
    whole.run()
    in_last = [number for number, found in enumerate(instants.names) if found == "step 3"][-1]
    with pytest.raises(Killed):
        build(tmp_path / "cut", name, Instants(in_last)).run()
    resumed = build(tmp_path / "cut", name, seed=7)
    resumed.run(resume=True)
    assert weights_of(resumed.model).tolist() == weights_of(whole.model).tolist()
    np.testing.assert_array_equal(resumed.scores.scores, whole.scores.scores)


@pytest.mark.parametrize("method", [OnlineEWC(), SI(), LwF(), ERACE(), ICaRL(), FromScratch(), SCR()])
def test_a_trainer_that_tells_no_tasks_is_refused(method: Any, tmp_path: Path) -> None:
    trainer = MixingTrainer(
        mlp(num_features=6, hidden_sizes=(4,), num_labels=6),
        arguments(tmp_path),
        train_dataset={"all": data()},
        methods=[method],
    )
    with pytest.raises(ValueError, match=rf"{method.name} needs to know where tasks begin.*ContinualRun"):
        trainer.train()


REFUSED: dict[str, tuple[Any, str]] = {
    "strength": (lambda: OnlineEWC(-1.0), "strength"),
    "damping": (lambda: SI(damping=0.0), "damping"),
    "temperature": (lambda: LwF(temperature=0.0), "temperature"),
    "augment": (lambda: SCR(augment="crop"), "augment must be a function"),  # type: ignore[arg-type]
    "by task": (lambda: gdumb(by_class(data(), data(), 2, scenario="task"), 5), "gdumb: .*Say scenario='class'"),
    "no classes": (lambda: nearest_mean(ReplayBuffer(5)), "selection=Reservoir does not. Use 'Herding'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_values_are_refused(name: str) -> None:
    make, match = REFUSED[name]
    with pytest.raises((ValueError, TypeError), match=match):
        make()


@pytest.mark.parametrize(
    ("name", "changes", "match"),
    [
        ("ERACE", {"scenario": "task"}, "ERACE: in a task-incremental sequence"),
        ("ICaRL", {"scenario": "task"}, "Say scenario='class', or use LwF"),
        ("GDumb", {"head": "growing"}, "the model has grown since the first task.*head='whole'"),
    ],
)
def test_what_a_method_cannot_do_is_refused_when_a_task_begins(
    name: str, changes: dict[str, Any], match: str, tmp_path: Path
) -> None:
    with pytest.raises(ValueError, match=match):
        build(tmp_path, name, max_steps=1, **changes).run()


# ---- Less is forgotten ----


def accuracy_of(folder: Path, scenario: Any, per_device_train_batch_size: int = 32, **options: Any) -> float:
    sequence = options.pop("sequence", None) or tasks_of(scenario)
    args = TrainingArguments(
        str(folder),
        num_train_epochs=4,
        learning_rate=3e-3,
        lr_scheduler_type="constant",
        per_device_train_batch_size=per_device_train_batch_size,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        seed=1,
    )
    model = mlp(num_features=64, hidden_sizes=(64,), num_labels=10)
    run = ContinualRun(model, sequence, args, batch_size=16, scores_before=False, **options)
    return all_metrics(run.run())["average_accuracy"]


@cache
def tasks_of(scenario: Any) -> Any:
    return by_class(*digits(), 2, scenario=scenario)


def with_memory(method: Any, selection: str = "ClassBalanced", by_mean: bool = False) -> dict[str, Any]:
    memory = ReplayBuffer(50, selection, is_online=False)
    return {"methods": [method], "memory": memory, **({"score": nearest_mean(memory)} if by_mean else {})}


BETTER: dict[str, tuple[str, Any]] = {
    "OnlineEWC": ("task", lambda: {"methods": [OnlineEWC(1e4, samples=200)]}),
    "SI": ("task", lambda: {"methods": [SI(1.0)]}),
    "LwF": ("task", lambda: {"methods": [LwF(4.0)]}),
    "ERACE": ("class", lambda: with_memory(ERACE())),
    "ICaRL": ("class", lambda: with_memory(ICaRL(), "Herding", by_mean=True)),
    "SCR": ("class", lambda: with_memory(SCR(), "Herding", by_mean=True)),
    "GDumb": ("class", lambda: {"methods": [FromScratch()], "sequence": gdumb(tasks_of("class"), 50)}),
}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return cache(lambda scenario: accuracy_of(tmp_path_factory.mktemp("plain"), scenario))


@pytest.mark.parametrize("name", BETTER)
def test_more_is_kept_than_by_plain_training(name: str, plain: Any, tmp_path: Path) -> None:
    scenario, options = BETTER[name]
    found = accuracy_of(tmp_path, scenario, **options())
    print(name, found, plain(scenario))
    assert found > plain(scenario) + (0.01 if scenario == "task" else 0.2)
