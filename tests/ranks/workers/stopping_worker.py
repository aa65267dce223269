"""What each of two ranks does in the tests of stopping: `torchrun ... stopping_worker.py FOLDER [backward|late]`."""

import errno
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback

from mixer.distributed.signals import RunInterrupted, RunTerminated
from mixer.trainer.checkpointing.files import step_of
from tests.helpers import Tokens
from tests.mixer.trainer.checkpointing.test_resume import KIND, build, end_of, go_on
from tests.ranks.launch import end_with, message_of

LEAVING = ("exit", "vanish", "make")


class At(TrainerCallback):
    """Does something at an event of a step on some ranks."""

    def __init__(self, event: str, step: int, ranks: set[int], does: Callable[[Any], Any]):
        def happen(args: Any, state: Any, control: Any, **_: Any) -> None:
            if state.global_step == step and args.process_index in ranks:
                does(control)

        setattr(self, f"on_{event}", happen)


def _receive(number: signal.Signals) -> Callable[[Any], Any]:
    return lambda control: os.kill(os.getpid(), number)


def _ask(*flags: str) -> Callable[[Any], Any]:
    return lambda control: [setattr(control, flag, True) for flag in flags]


def signals(folder: Path) -> dict[str, Any]:
    """A signal that one rank has, or all, at different steps; and what is gone on with after it."""
    results: dict[str, Any] = {}
    whole = build(folder / "whole", max_steps=6)
    whole.train()
    # The ledger is the main process's: another one sees it as far as it is written.
    own = set() if whole.is_world_process_zero() else {"streams", "losses", "clock", "evaluations"}
    expected = {part: end for part, end in end_of(whole).items() if part not in own}
    for name, ranks, number in (("one", {1}, signal.SIGTERM), ("all", {0, 1}, signal.SIGINT)):
        trainer = build(folder / name, callbacks=[At("step_begin", 3, ranks, _receive(number))], max_steps=6)
        try:
            trainer.train()
        except (RunTerminated, RunInterrupted) as ended:
            results[name] = [type(ended).__name__, str(ended).split(";")[0], trainer.state.global_step]
    end = go_on(build(folder / "one", max_steps=6))
    results["differs"] = [part for part in expected if end[part] != expected[part]]
    return results


def controls(folder: Path) -> dict[str, Any]:
    """What a callback asks for on one rank alone."""
    stopped = build(folder / "stopped", callbacks=[At("step_end", 3, {1}, _ask("should_training_stop"))])
    stopped.train()
    asked = build(
        folder / "asked", callbacks=[At("step_end", 3, {1}, _ask("should_save", "should_evaluate"))], max_steps=4
    )
    asked.train()
    late = build(folder / "late", callbacks=[At("evaluate", 2, {0}, _ask("should_training_stop"))])
    late.train()
    evaluated = sorted({entry["step"] for entry in asked.state.log_history if "eval_loss" in entry})
    return {
        "stopped": stopped.state.global_step,
        "saved": (folder / "asked" / "checkpoint-3" / "complete.json").is_file(),
        "evaluated": evaluated,
        "late": late.state.global_step,
    }


def full(folder: Path) -> dict[str, Any]:
    """A disk that is full for the one rank that writes, at its second checkpoint, and has room again later."""
    whole = Trainer._save_optimizer_and_scheduler

    def save(trainer: Any, output_dir: str) -> None:
        if trainer.args.process_index == 0 and output_dir.endswith("checkpoint-4"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), f"{output_dir}/optimizer.pt")
        whole(trainer, output_dir)

    trainer = build(folder, save_steps=2, max_steps=6)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_save_optimizer_and_scheduler", save)
        message = message_of(trainer.train)
    resumed = build(folder, save_steps=2, max_steps=6)
    from_step = step_of(Path(str(resumed.newest_checkpoint())))
    go_on(resumed)
    return {"full": message, "goes on from": from_step, "ends": resumed.state.global_step}


def uneven(folder: Path) -> dict[str, str]:
    """Evaluation sets of which one rank has more than the other."""
    trainer = build(folder / "uneven")
    rank = trainer.args.process_index
    several = {"a": Tokens(4, 1, KIND), "b": Tokens(4 + rank, 1, KIND)}
    return {"uneven": message_of(lambda: trainer.evaluate(several)), "even": message_of(trainer.evaluate)}


def leaving(folder: Path, kind: str) -> None:
    """The rank that keeps the store leaves the other one alone."""

    def leave(control: Any) -> None:
        if kind == "vanish":
            os._exit(1)
        raise SystemExit("no more")

    rank = int(os.environ["RANK"])
    options = {"train_sampling_strategy": "batch_rebalance"} if (kind, rank) == ("make", 0) else {}
    message = message_of(lambda: build(folder, callbacks=[At("step_end", 2, {0}, leave)], **options).train())
    (folder / f"{kind}-{rank}.txt").write_text(message)


def failing(folder: Path, kind: str) -> None:
    """An error in the midst of a backward, or a rank that stays away, on rank 1 alone."""

    def fail(control: Any) -> None:
        while kind == "late" and not (folder / "late-0.txt").exists():
            time.sleep(0.1)
        raise ValueError("a broken callback")

    trainer = build(folder, callbacks=[At("step_begin", 3, {1}, fail)], ddp_timeout=6)
    message = message_of(trainer.train)
    rank = trainer.args.process_index
    (folder / f"{kind}-{rank}.txt").write_text(message)
    sys.stdout.flush()
    os._exit(0 if rank == 0 else 1)


if __name__ == "__main__":
    for number, handler in ((signal.SIGTERM, signal.SIG_DFL), (signal.SIGINT, signal.default_int_handler)):
        signal.signal(number, handler)
    torch.set_num_threads(1)
    place = Path(sys.argv[1])
    if len(sys.argv) > 2:
        (leaving if sys.argv[2] in LEAVING else failing)(place, sys.argv[2])
    else:
        end_with({**signals(place), **controls(place), **uneven(place), **full(place / "full")}, place, "results")
