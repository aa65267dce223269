"""Online runs: with one epoch every sample is trained on once, whatever the batch size."""

from pathlib import Path

import pytest

from mixer.ledger.ledger import Ledger
from replay import ReplayBuffer
from tasks.continual.continual import ContinualRun
from tasks.sequences import by_class
from tests.helpers import arguments
from tests.tasks.test_continual import data, new_model


@pytest.mark.parametrize("batch_size", [1, 7, 64])
@pytest.mark.parametrize("capacity", [0, 5])
def test_one_epoch_is_one_pass_with_any_batch_size(tmp_path: Path, batch_size: int, capacity: int) -> None:
    sequence = by_class(data(), data(), 2)
    options = {"max_steps": -1, "num_train_epochs": 1, "logging_strategy": "no", "save_strategy": "no"}
    run = ContinualRun(
        new_model(),
        sequence,
        arguments(tmp_path, **options),
        memory=ReplayBuffer(capacity) if capacity else None,
        batch_size=batch_size,
        scores_before=False,
    )
    run.run()
    for number, task in enumerate(sequence, 1):
        rows = Ledger(tmp_path / f"0{number}-{task.name}" / "ledger").to_pandas().query("stream == @task.name")
        full, left = divmod(len(task.train), batch_size)
        assert rows["count"].tolist() == [batch_size] * full + [left] * (left > 0)
        assert rows["coverage"].iloc[-1] == 1.0
