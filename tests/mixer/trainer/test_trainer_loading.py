"""Loading ahead in a whole run: worker processes change nothing but the time."""

from pathlib import Path
from typing import Any

import pandas as pd
import torch

from mixer import LossChange, MixingTrainer
from mixer.utils.random_state import seeded
from tests.helpers import Tokens, weights_of
from tests.mixer.trainer import runs


def run(folder: Path, num_workers: int, resume: Any = None, **changes: Any) -> MixingTrainer:
    loading = {"dataloader_num_workers": num_workers, "dataloader_persistent_workers": num_workers > 0}
    options = {"max_steps": 6, "per_device_train_batch_size": 4, "seed": 5, "batch_size": 9, **loading, **changes}
    return runs.train(folder, resume=resume, **options)


class Masked(Tokens):
    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        row = dict(super().__getitem__(index))
        row["input_ids"] = torch.where(torch.rand(len(row["input_ids"])) < 0.2, 1, row["input_ids"])
        return row


def shaking_collator(rows: list[dict[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    batch["input_ids"] = torch.where(torch.rand(batch["input_ids"].shape) < 0.1, 2, batch["input_ids"])
    return batch


def random_data() -> dict[str, Any]:
    data = {"a": Masked(20, 1), "b": Masked(11, 2), "c": Tokens(6, 3)}
    policy = LossChange(num_warmup_observations=1)
    return {"train_dataset": data, "data_collator": shaking_collator, "mixing": policy}


def test_with_workers_all_is_as_without(tmp_path: Path) -> None:
    trainers, states = [], []
    for number in (0, 2):
        with seeded(1):
            trainers.append(run(tmp_path / str(number), number, **random_data()))
            states.append(torch.get_rng_state())
    alone, helped = trainers
    assert torch.equal(*states)
    assert torch.equal(weights_of(alone.model), weights_of(helped.model))
    rows = helped.ledger.to_pandas()
    pd.testing.assert_frame_equal(alone.ledger.to_pandas(), rows)
    assert set(rows["staleness"]) == {0}
    counts, batches = alone.ledger.timings(), helped.ledger.timings()
    assert (counts["hits"] + counts["misses"]).sum() == 0
    assert (batches["hits"] + batches["misses"]).tolist() == batches["total"].tolist()
    assert helped._parts.run.loader._prefetcher._workers._answers.results is None  # no worker stays
