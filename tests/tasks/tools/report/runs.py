"""Small continual runs, trained in a second or two."""

import json
from collections import Counter
from pathlib import Path

import numpy as np
import torch

from replay import ReplayBuffer
from tasks.continual.continual import ContinualRun
from tasks.mlp import mlp
from tasks.sequences import by_class
from tasks.sources import Arrays
from tests.helpers import arguments

_MEMORIES = {
    "none": lambda: None,
    "reservoir": lambda: ReplayBuffer(8, seed=3),
    "herding": lambda: ReplayBuffer(6, "Herding", is_online=False, seed=3),
}


def _data(seed: int, num_samples: int) -> Arrays:
    random = np.random.default_rng(seed)
    labels = np.arange(num_samples) % 6
    inputs = np.eye(6, dtype=np.float32)[labels] + random.normal(0, 0.1, size=(num_samples, 6)).astype(np.float32)
    return Arrays(inputs, labels)


def train(folder: Path, kind: str) -> Path:
    """Trains on three tasks of two classes, three steps each, and notes beside the run what its memory ends with."""
    torch.manual_seed(0)
    memory = _MEMORIES[kind]()
    # A memory is then noted twice at a task's last step: in its log entry, and as it ends.
    options = {"max_steps": -1, "num_train_epochs": 1, "logging_steps": 1, "learning_rate": 0.1}
    run = ContinualRun(
        mlp(num_features=6, hidden_sizes=(8,), num_labels=6),
        by_class(_data(0, 36), _data(1, 36), 2),
        arguments(folder, **{**options, "per_device_train_batch_size": 4}),
        memory=memory,
        batch_size=4,
        **({"score_steps": 1, "held_out": {"general": _data(2, 12)}} if kind == "reservoir" else {}),
    )
    run.run()
    if memory is not None:
        classes = Counter(str(int(memory[slot]["labels"])) for slot in range(len(memory)))
        sources = {name: count for name, count in memory.num_samples_by_source.items() if count}
        (folder / "held.json").write_text(json.dumps({"classes": classes, "sources": sources}))
    return folder
