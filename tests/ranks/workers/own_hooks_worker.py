"""What each rank does in the tests of the page on own hooks: `torchrun ... own_hooks_worker.py FOLDER`."""

import re
import sys
from pathlib import Path
from typing import Any

import torch

from tests.helpers import arguments, weights_of
from tests.ranks.launch import end_with
from tests.replay.methods.runs import Classifier, Points

PAGE = Path(__file__).parents[3] / "docs" / "own_hooks.md"
DATA = {"math": Points(20, seed=1), "code": Points(12, seed=2)}  # a step of the page takes all of it
SAVED = {"save_strategy": "steps", "save_steps": 3}


def run_page(folder: Path, **changes: Any) -> dict[str, Any]:
    """Runs the code of the page; returns its names, with an untrained `trainer`."""
    args = arguments(folder, per_device_train_batch_size=5, **{"max_steps": 6, **changes})
    names: dict[str, Any] = {"model": Classifier(), "args": args, **DATA}
    for block in re.findall(r"```python\n(.+?)```", PAGE.read_text(), re.DOTALL):
        exec(block, names)  # noqa: S102
    return names


def whole(folder: Path) -> Any:
    """Trains without a break, and saves on the way."""
    trainer = run_page(folder, **SAVED)["trainer"]
    trainer.train()
    return trainer


def resumed(folder: Path) -> Any:
    """Resumes the run of `whole` from its middle."""
    trainer = run_page(folder, **SAVED)["trainer"]
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-3"))
    return trainer


def main() -> None:
    folder, found = Path(sys.argv[1]), {}
    for train in (whole, resumed):
        trainer = train(folder / "run")
        torch.save(weights_of(trainer.model), folder / f"{train.__name__}-{torch.distributed.get_rank()}.pt")
        found[train.__name__] = trainer.state.log_history[-2]
    end_with(found, folder, "own_hooks")


if __name__ == "__main__":
    main()
