"""Online runs: with one epoch each sample is trained on once, whatever the batch size."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from torch.utils.data import Dataset

from mixer.ledger.ledger import Ledger
from replay import ReplayBuffer
from tasks.continual.continual import ContinualRun
from tasks.sequences import from_data_sets
from tests.helpers import arguments
from tests.tasks.test_continual import data, new_model


class Counted(Dataset[Any]):
    """Counts how often each sample was read while the model was trained."""

    def __init__(self, dataset: Any):
        self.dataset, self.labels, self.reads = dataset, dataset.labels, Counter[int]()

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, index: int) -> Any:
        self.reads[index] += 1
        return self.dataset[index]


@pytest.mark.parametrize("batch_size", [1, 7, 40, 64])
@pytest.mark.parametrize("capacity", [0, 5])
def test_each_sample_is_seen_once_with_any_batch_size(tmp_path: Path, batch_size: int, capacity: int) -> None:
    trains = [Counted(data()) for _ in range(2)]
    sequence = from_data_sets({f"task_{n}": (train, data()) for n, train in enumerate(trains)}, "domain")
    before = [Counter(train.reads) for train in trains]
    options = {"max_steps": -1, "num_train_epochs": 1, "per_device_train_batch_size": 16, "logging_strategy": "no"}
    memory = ReplayBuffer(capacity) if capacity else None
    run = ContinualRun(
        new_model(), sequence, arguments(tmp_path, **options), memory=memory, batch_size=batch_size, scores_before=False
    )
    run.run()
    num_steps = -(-len(data()) // batch_size)
    for number in range(2):
        table = Ledger(tmp_path / f"0{number + 1}-task_{number}" / "ledger").to_pandas()
        counts = table[table["stream"] == f"task_{number}"]["count"]
        assert counts.sum() == len(data())
        assert len(counts) == num_steps
    if not capacity:
        for train, already in zip(trains, before, strict=True):
            assert train.reads - already == Counter(range(len(data())))
