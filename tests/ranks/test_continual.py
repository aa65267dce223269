"""Continual runs on two ranks."""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tasks.score import Score, accuracy
from tasks.sequences import blurry, by_class, gradual
from tasks.sources import Arrays
from tasks.task import Task, TaskSequence
from tests.mixer.checkpoint.test_resume import Instants, Killed
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched, some
from tests.tasks.generation.test_answers import answers
from tests.tasks.test_continual import build, data, end_of, images, new_model
from tests.tasks.test_lm_eval_score import harness

# Streams without boundaries, of six classes.
FREE: dict[str, Callable[[], TaskSequence]] = {
    "blurry": lambda: blurry(images(), images(), 3, 0.5, seed=0, disjoint=0.5, at_random=True),
    "gradual": lambda: gradual(by_class(images(), images(), 2), 2, 0.5, seed=0),
}
KILLS = {
    "reservoir, kept": ("score task_1", "step 6", "before end 2"),
    "disk, fresh": ("step 7",),
    "gradual": ("step 5",),
}
HEADED = ("growing, kept", "masked, payloads")
RUNS = ("none, fresh", "reservoir, kept", "herding, kept", "disk, fresh", *HEADED, *FREE)
FEW = ("disk, fresh",)


def build_here(folder: Path, name: str, instants: Instants | None = None, seed: int = 0, **changes: Any) -> Any:
    """The run of one rank: each of two ranks has half of each step."""
    changes = {"per_device_train_batch_size": 4 // int(os.environ.get("WORLD_SIZE", "1")), **changes}
    if name in FREE:
        name, changes = "reservoir, kept", {"sequence": FREE[name](), "num_labels": 6, **changes}
    return build(folder, name, instants, model_seed=seed, **changes)


def ended(name: str, folder: Path) -> tuple[Any, list[str]]:
    """A run that nobody kills, and what differs in those that are killed and go on with another model."""
    run, different = build_here(folder / name, name, instants := Instants()), []
    run.run()
    end = end_of(run)
    for place in KILLS.get(name, ("step 2",) if name in HEADED else ()):
        found = [number for number, instant in enumerate(instants.names) if instant == place]
        again = folder / f"{name} {place}"
        with pytest.raises(Killed):
            build_here(again, name, Instants(found[-1] if name not in HEADED else found[1])).run()
        torch.distributed.barrier()
        resumed = build_here(again, name, seed=torch.distributed.get_rank())
        resumed.run(resume=True)
        found_end = end_of(resumed)
        different += [f"{place}: {part}" for part in end if end[part] != found_end[part]]
    return end, different


def scores(folder: Path) -> list[float]:
    """The accuracy of a fresh model on an odd number of samples, among all classes and among two."""
    odd = Arrays(data().inputs[:37], data().labels[:37])
    run = build_here(folder / "scores", "none, fresh")
    trainer = run._new_trainer(0)
    found = [accuracy(trainer, odd), accuracy(trainer, odd, [0, 2])]
    tasks = by_class(data(), data(), groups={"two": [0, 2], "one": [1]}, scenario="task")
    run = build_here(folder / "task scores", "none, fresh", sequence=tasks)
    return [*found, *run.run().scores[0].tolist()]


def failures(folder: Path) -> dict[str, Any]:

    def score(trainer: Any, task: Task) -> float:
        is_broken = task.name == "task_2" and torch.distributed.get_rank() == 1
        return accuracy(trainer, ["broken"] * 9 if is_broken else task.evaluation)

    matrix = build_here(folder / "failures", "none, fresh", score=Score(score)).run()
    refused = message_of(build_here(folder / "failures", "none, fresh").run)
    return {"failures": sorted(set(matrix.failures.values())), "scores": matrix.scores, "refused": refused}


results = launched(
    *(*(partial(ended, name) for name in FEW), failures, answers, harness),
    rare=[*(partial(ended, name) for name in RUNS if name not in FEW), scores],
)


@pytest.mark.parametrize("name", some(RUNS, FEW))
def test_two_ranks_end_as_one_and_killed_runs_as_one_that_was_not(results: Results, name: str, tmp_path: Path) -> None:
    run = build_here(tmp_path, name)
    run.run()
    expected = end_of(run)
    (first, different), (second, others) = (result[name] for result in results)
    assert different == others == []
    assert first == second
    np.testing.assert_allclose(first["weights"], expected["weights"], rtol=0, atol=1e-5)
    if name not in HEADED:
        np.testing.assert_allclose(first["scores"], expected["scores"], rtol=0, atol=1e-6)
        assert first.get("entries") == expected.get("entries")


@pytest.mark.full
def test_samples_are_scored_once_each(results: Results) -> None:
    logits, labels = new_model()(data().inputs).logits, torch.from_numpy(data().labels)
    whole, of_two = logits.argmax(-1) == labels, (logits + torch.tensor([0.0, float("-inf"), 0.0])).argmax(-1) == labels
    shares = (whole[:37], of_two[:37], of_two[labels != 1])
    expected = [*(float(share.double().mean()) for share in shares), 1.0]
    for result in results:
        assert result["scores"] == pytest.approx(expected, abs=1e-12)


def test_what_fails_on_one_rank_is_said_on_both_and_ends_neither(results: Results) -> None:
    first, second = (result["failures"] for result in results)
    assert first["failures"] == second["failures"]
    (told,) = first["failures"]
    assert told.startswith("rank 1: TypeError: ")
    np.testing.assert_array_equal(first["scores"], second["scores"])
    assert np.isnan(first["scores"][:, 1]).all()
    assert first["refused"].startswith("InvalidValueError: output_dir must hold no run")
    assert second["refused"].startswith("RemoteError: rank 0 failed: InvalidValueError")


def test_generated_answers_are_shared_out_and_gathered(results: Results, tmp_path: Path) -> None:
    expected = answers(tmp_path)
    assert [result["answers"] for result in results] == [expected, expected]


def test_each_rank_has_the_score_of_lm_eval(results: Results, tmp_path: Path) -> None:
    pytest.importorskip("lm_eval", reason="the extra lm-eval is not installed")
    expected = harness(tmp_path)
    assert [result["harness"] for result in results] == [expected, expected]
