"""What each of two ranks does in the tests of going on: `torchrun ... resume_worker.py FOLDER`."""

import gc
import sys
from pathlib import Path

import pytest
import torch
from transformers import TrainerCallback

from tests.mixer.trainer.checkpointing.test_resume import Killed, build, end_of, go_on
from tests.ranks.launch import end_with

# Both ranks are killed at the same instant: at the n-th barrier (a checkpoint has three), or at the n-th of some event.
KILLS = {
    "steps": (("barrier", 3), ("barrier", 4), ("on_step_begin", 6)),
    "changing": (("barrier", 4), ("on_step_begin", 7)),
    "epochs": (("barrier", 4), ("on_epoch_end", 0)),
}
_IN_THE_LEDGER = ("streams", "losses", "clock", "evaluations")


class _KilledAt(TrainerCallback):
    def __init__(self, kind: str, number: int):
        self.kind, self.left = kind, number
        for event in ("on_save", "on_step_begin", "on_epoch_end"):
            setattr(self, event, lambda *_, name=event, **__: self.pass_by(name))

    def pass_by(self, kind: str) -> None:
        if kind == self.kind:
            if self.left == 0:
                raise Killed(kind)
            self.left -= 1


def _kill(folder: Path, name: str, kind: str, number: int) -> None:
    killed = _KilledAt(kind, number)
    trainer = build(folder, name, [killed])
    barrier = trainer.accelerator.wait_for_everyone

    def killing_barrier() -> None:
        barrier()
        killed.pass_by("barrier")

    trainer.accelerator.wait_for_everyone = killing_barrier
    with pytest.raises(Killed):
        trainer.train()


def kills(folder: Path) -> list[str]:
    """Names what differs between killed runs and one that was not."""
    different = []
    for name, instants in KILLS.items():
        whole = build(folder / name, name)
        whole.train()
        is_main = whole.is_world_process_zero()
        # The ledger is the main process's: another one sees it as far as it is written.
        expected = {part: end for part, end in end_of(whole).items() if is_main or part not in _IN_THE_LEDGER}
        for kind, number in instants:
            place = folder / f"{name}-{kind}-{number}"
            _kill(place, name, kind, number)
            end = go_on(build(place, name))
            different += [f"{name} {kind} {number}: {part}" for part in expected if end[part] != expected[part]]
    return different


def errors(folder: Path) -> list[str]:
    """The messages where there is nothing to go on from, and after files were torn."""
    messages = []
    for path in (True, str(folder / "steps" / "checkpoint-8")):
        if path is not True and torch.distributed.get_rank() == 0:
            (folder / "steps" / "checkpoint-8" / "rng_state_1.pth").write_bytes(b"torn")
        try:
            build(folder / "nothing").train(resume_from_checkpoint=path)
        except ValueError as error:
            messages.append(str(error))
    return messages


def choice(folder: Path) -> str:
    """What all ranks choose where only the main process sees the newest checkpoint's fault."""
    trainer = build(folder / "steps")
    return Path(str(trainer.newest_checkpoint())).name


def main() -> None:
    folder = Path(sys.argv[1])
    gc.collect = lambda *_: 0  # takes longer at each run's beginning than the run
    results = {"kills": kills(folder), "errors": errors(folder), "choice": choice(folder)}
    end_with(results, folder, "results")


if __name__ == "__main__":
    main()
