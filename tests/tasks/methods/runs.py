"""Small continual runs with each method, on one rank or two."""

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

from mixer.distributed.collectives import RankSync
from mixer.trainer.method import RunContext
from replay import ReplayBuffer
from tasks.continual.continual import ContinualRun
from tasks.methods import CLSER, ERACE, SI, SLCA, ICaRL, LwF, OnlineEWC, RanPAC, nearest_mean, slow_encoder
from tasks.score import Score
from tasks.sequences import by_class
from tasks.sources import Arrays
from tests.helpers import arguments
from tests.mixer.checkpoint.test_resume import Instants
from tests.tasks.test_continual import Recorder, new_model

# For each method: what it is, and what else a run with it needs.
CASES: dict[str, Callable[[], dict[str, Any]]] = {
    "OnlineEWC": lambda: {"methods": [OnlineEWC(50.0, decay=0.5, samples=7)]},
    "OnlineEWC by task": lambda: {"methods": [OnlineEWC(50.0)], "scenario": "task"},
    "SI": lambda: {"methods": [SI(2.0)], "head": "growing"},
    "LwF": lambda: {"methods": [LwF(2.0)]},
    "LwF by task": lambda: {"methods": [LwF(2.0)], "scenario": "task"},
    "ERACE": lambda: {"methods": [ERACE()], "memory": ReplayBuffer(12)},
    "CLSER": lambda: with_copies(CLSER(2.0, decay=0.6, stable_rate=0.4)),
    "ICaRL": lambda: with_nearest_mean(ICaRL()),
    "RanPAC": lambda: with_projections(RanPAC(20, trains_first=True)),
    "SLCA": lambda: {"methods": [SLCA(8, 2)], "trainer_class": slow_encoder(0.1)},
}


def with_projections(method: RanPAC) -> dict[str, Any]:
    return {"methods": [method], "score": Score(method.score, metric="accuracy")}


def with_nearest_mean(method: Any, capacity: int = 12) -> dict[str, Any]:
    memory = ReplayBuffer(capacity, "Herding", is_online=False)
    return {"methods": [method], "memory": memory, "score": nearest_mean(memory)}


def with_copies(method: CLSER) -> dict[str, Any]:
    return {"methods": [method], "memory": ReplayBuffer(12), "score": Score(method.score, metric="accuracy")}


@cache
def data() -> Arrays:
    random = np.random.default_rng(0)
    labels = np.arange(48) % 6
    return Arrays((random.normal(size=(48, 6)) + 2.0 * np.eye(6)[labels]).astype(np.float32), labels)


def sequence(scenario: Any) -> Any:
    return by_class(data(), data(), 2, scenario=scenario)


def build(folder: Path, name: str, instants: Instants | None = None, seed: int = 0, **changes: Any) -> ContinualRun:
    """Makes a run of three tasks of three steps, with half of each step on each of two ranks."""
    options = {**CASES[name](), **changes}
    tasks = options.pop("sequence", None) or sequence(options.pop("scenario", "class"))
    names = ("max_steps", "num_train_epochs", "logging_steps", "per_device_train_batch_size")
    given = {key: options.pop(key) for key in names if key in options}
    size = 2 // int(os.environ.get("WORLD_SIZE", "1"))
    training = {"save_steps": 2, "save_strategy": "steps", "learning_rate": 0.05, "max_steps": 3, "seed": 0}
    args = arguments(folder / "run", **{**training, "per_device_train_batch_size": size, **given})
    recorder = Recorder(instants or Instants())
    model = new_model(seed, num_labels=2 if options.get("head") == "growing" else 6)
    return ContinualRun(model, tasks, args, batch_size=4, scores_before=False, callbacks=[recorder], **options)


def context(passes: Any, world_size: int = 1, streams: Any = ()) -> RunContext:
    """A run as a method sees it, of parts that stand in for its own."""
    ranks: Any = RankSync(1)
    return RunContext(streams, 0, world_size, True, torch.device("cpu"), ranks, lambda: SimpleNamespace(seed=0), passes)  # type: ignore[arg-type,return-value]


class Softmax(nn.Module):
    """A linear classifier in double precision, whose gradients are easily written down."""

    def __init__(self, num_features: int, num_classes: int):
        super().__init__()
        torch.manual_seed(0)
        self.layer = nn.Linear(num_features, num_classes, bias=False, dtype=torch.float64)

    def forward(self, pixel_values: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
        logits = self.layer(pixel_values.double())
        return {"logits": logits, **({} if labels is None else {"loss": nn.functional.cross_entropy(logits, labels)})}
