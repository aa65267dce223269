"""One run of the mixing contest: what is asked of every contestant in the same words."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from datasets import Dataset
from transformers import Trainer

from benchmarks.peers.clock import Clock
from benchmarks.peers.counted import Counter, largest_deviation, realised_shares
from benchmarks.peers.peak import Peak
from benchmarks.peers.work import SHARES, Ending, build_model, evaluate, quieted, read_datasets

Change = Callable[[], None]


@dataclass(frozen=True)
class Request:
    """A run of a mixture.

    Args:
        datasets: By name.
        shares: What is asked for, in their order.
        batch_size: Samples of a step.
        steps: Steps in all, those of an earlier run that is gone on with included.
        seed: Seed of weights and order.
        folder: Where checkpoints are.
        model: `hidden`, `layers` and `length` of the model.
        stop_at: Number of steps after which a checkpoint is written and the run ends; `None` for none.
        resume: Whether to go on from that checkpoint.
        saved_batch_size: Batch size of the run that is gone on with; `None` if it is the same.
        change_at: Number of steps after which weights or batch size change; `None` for none.
        new_shares: The shares from then on; `None` leaves them.
        new_batch_size: The batch size from then on; `None` leaves it.
        passes: Passes over the data that the run makes at most: where that is more than 1, data sets that end begin
            anew until all have ended.
        logs: Whether the run logs.
    """

    datasets: dict[str, Dataset]
    shares: tuple[float, ...]
    batch_size: int
    steps: int
    seed: int
    folder: str
    model: dict[str, int]
    stop_at: int | None = None
    resume: bool = False
    saved_batch_size: int | None = None
    change_at: int | None = None
    new_shares: tuple[float, ...] | None = None
    new_batch_size: int | None = None
    passes: int = 1
    logs: bool = False

    @property
    def options(self) -> dict[str, Any]:
        """What models and training arguments are made by."""
        own = {"seed": self.seed, "folder": self.folder, "batch_size": self.batch_size, "steps": self.steps}
        return {**self.model, **own}

    @property
    def arguments(self) -> dict[str, Any]:
        """Training arguments of its own."""
        saving = {} if self.stop_at is None else {"save_strategy": "steps", "save_steps": self.stop_at}
        logging = {"logging_strategy": "steps", "logging_steps": 5} if self.logs else {}
        return {**saving, **logging}

    @property
    def checkpoint(self) -> str:
        """Folder of the checkpoint that `stop_at` writes and `resume` reads."""
        return str(next(Path(self.folder).glob("checkpoint-*")))

    def but(self, **changes: Any) -> "Request":
        """Gives the same with something else.

        Args:
            **changes: What else.

        Returns:
            Another request.
        """
        return replace(self, **changes)


# Makes a trainer that is ready to train; the model is one that is counted.
NewTrainer = Callable[[Any, Request], Trainer]


def run(new_trainer: NewTrainer, request: Request) -> Counter:
    """Does a run.

    Args:
        new_trainer: Makes the contestant's trainer.
        request: What is asked for.

    Returns:
        What the model was trained on.
    """
    model, counter = build_model(request.options)
    trainer = quieted(new_trainer(model, request))
    if request.stop_at is not None:
        trainer.add_callback(Ending(request.stop_at))
    trainer.train(resume_from_checkpoint=request.checkpoint if request.resume else None)
    return counter


def train(new_trainer: NewTrainer, options: dict[str, Any]) -> dict[str, Any]:
    """Does the contest's training, and takes the time from the data sets in hand to the trained model.

    Args:
        new_trainer: Makes the contestant's trainer.
        options: Of the contest.

    Returns:
        `seconds`, `processor_seconds`, the peak of memory without that of evaluating, which is the same for all; `loss`
        on held-out text, realised `shares`, `deviation` in samples and number of `samples`.
    """
    peak = Peak()
    torch.set_num_threads(options["threads"])
    shape = {name: options[name] for name in ("hidden", "layers", "length")}
    datasets = read_datasets(options["data"])
    model, counter = build_model(options)
    names = ("batch_size", "steps", "seed", "folder")
    request = Request(datasets, SHARES, **{name: options[name] for name in names}, model=shape)
    clock = Clock()
    trainer = quieted(new_trainer(model, request))
    trainer.train()
    times = {**clock.stop(), **peak.figures()}
    return {**times, "loss": evaluate(model, options["data"]), **summary(counter, SHARES)}


def summary(counter: Counter, shares: Sequence[float]) -> dict[str, Any]:
    """Sums up what a model was trained on.

    Args:
        counter: What counted.
        shares: What was asked for.

    Returns:
        Plain data.
    """
    samples = counter.samples()
    return {
        "shares": realised_shares(samples, len(shares)),
        "deviation": largest_deviation(counter.batches, shares),
        "samples": len(samples),
    }
