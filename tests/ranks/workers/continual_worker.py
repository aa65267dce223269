"""What each rank does in the tests of continual runs on several ranks: `torchrun ... continual_worker.py FOLDER`."""

import gc
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.continual.continual import ContinualRun
from tasks.score import Score, accuracy
from tasks.sequences import by_class
from tasks.sources import Arrays
from tasks.task import Task
from tests.mixer.trainer.checkpointing.test_resume import Instants, Killed
from tests.ranks.launch import end_with, message_of
from tests.tasks.test_continual import build, build_headed, data, end_of, new_model

KILLS = {"reservoir, kept": ("score task_1", "step 6", "before end 2"), "disk, fresh": ("step 7", "after end 1")}


def build_here(folder: Path, name: str, instants: Instants | None = None, **changes: Any) -> ContinualRun:
    """The run of one rank: each of two ranks has half of each step."""
    size = {"per_device_train_batch_size": 4 // torch.distributed.get_world_size()}
    run: ContinualRun = build(folder, name, instants, **{**size, **changes})
    return run


def runs(folder: Path) -> dict[str, Any]:
    """Runs that nobody kills, and what differs in those that are killed and go on."""
    results: dict[str, Any] = {"ends": {}, "different": []}
    for name in ("none, fresh", "reservoir, kept", "herding, kept", "disk, fresh"):
        instants = Instants()
        run = build_here(folder / name, name, instants)
        run.run()
        results["ends"][name] = end = end_of(run)
        for place in KILLS.get(name, ()):
            found = [number for number, instant in enumerate(instants.names) if instant == place]
            again = folder / f"{name} {place}"
            with pytest.raises(Killed):
                build_here(again, name, Instants(found[-1])).run()
            torch.distributed.barrier()
            resumed = build_here(again, name, model=new_model(seed=torch.distributed.get_rank()))
            resumed.run(resume=True)
            found_end = end_of(resumed)
            results["different"] += [f"{name} {place}: {part}" for part in end if end[part] != found_end[part]]
    return results


def heads(folder: Path) -> dict[str, Any]:
    """Runs with heads of their own, killed in the second task, and what of them differs from those nobody killed."""
    results: dict[str, Any] = {"ends": {}, "different": []}
    for kind in ("growing, kept", "masked, payloads"):
        own: dict[str, Any] = {"per_device_train_batch_size": 2}
        run = build_headed(folder / kind, kind, instants := Instants(), **own)
        run.run()
        results["ends"][kind] = end = end_of(run)
        last = [number for number, instant in enumerate(instants.names) if instant == "step 2"][1]
        with pytest.raises(Killed):
            build_headed(folder / f"{kind} again", kind, Instants(last), **own).run()
        torch.distributed.barrier()
        resumed = build_headed(folder / f"{kind} again", kind, seed=torch.distributed.get_rank(), **own)
        resumed.run(resume=True)
        found = end_of(resumed)
        results["different"] += [f"{kind}: {part}" for part in end if end[part] != found[part]]
    return results


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
    """An evaluation that one rank cannot do, and a folder in which there is a run already."""

    def score(trainer: Any, task: Task) -> float:
        is_broken = task.name == "task_2" and torch.distributed.get_rank() == 1
        return accuracy(trainer, ["broken"] * 9 if is_broken else task.evaluation)

    run = build_here(folder / "failures", "none, fresh", score=Score(score))
    matrix = run.run()
    refused = build_here(folder / "failures", "none, fresh")
    return {
        "failures": sorted(set(matrix.failures.values())),
        "scores": [[str(score) for score in row] for row in matrix.scores.tolist()],
        "refused": message_of(refused.run),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    gc.collect = lambda *_: 0  # takes longer at each run's beginning than the run
    torch.set_num_threads(1)
    build(folder / "first", "none, fresh")  # joins the ranks
    results = {
        "runs": runs(folder),
        "heads": heads(folder / "heads"),
        "scores": scores(folder),
        "failures": failures(folder),
    }
    end_with(results, folder, "continual")


if __name__ == "__main__":
    main()
