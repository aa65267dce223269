"""Two ranks count the labels of a step together, and mix by them as one process does."""

from pathlib import Path
from typing import Any

from mixer import Budget, Fixed
from tests.mixer.trainer.test_shares_of_labels import WEIGHTS, made
from tests.ranks.warm import Results, launched


def trained(folder: Path, size: int = 3) -> list[Any]:
    options = {"mixing": Fixed(WEIGHTS, unit="labels"), "budget": Budget(labels=300), "batch_size": 7}
    trainer = made(folder / "run", max_steps=-1, per_device_train_batch_size=size, **options)
    trainer.train()
    return [trainer.mixing.state_dict()]


results = launched(trained)


def test_two_ranks_count_labels_as_one_process(results: Results, tmp_path: Path) -> None:
    alone = trained(tmp_path, 7)
    for result in results:
        assert result["trained"] == alone
