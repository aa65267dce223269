"""The comparison with peers: how samples are counted."""

from typing import Any

import numpy as np
import torch

from benchmarks.peers.counted import Counter, largest_deviation, realised_shares


def samples(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def test_shares_and_the_largest_deviation() -> None:
    batches = [samples((0, 0), (0, 1)), samples((1, 0), (1, 1))]
    assert realised_shares(np.concatenate(batches), 3) == [0.5, 0.5, 0.0]
    assert largest_deviation(batches, [0.5, 0.5, 0.0]) == 1.0
    assert largest_deviation(batches, [0.25, 0.5, 0.25]) == 1.5


def test_only_training_is_counted_and_the_columns_are_taken_out() -> None:
    class Inputs(torch.nn.Module):
        def forward(self, **inputs: Any) -> list[str]:
            return sorted(inputs)

    model, counter = Inputs(), Counter()
    counter.attach(model)
    batch = {"input_ids": torch.ones(2), "source": torch.tensor([1, 0]), "row": torch.tensor([5, 6])}
    assert model(**batch) == ["input_ids"]
    with torch.no_grad():
        model(**batch)
    model.eval()
    assert model(**batch) == ["input_ids"]
    assert counter.samples().tolist() == [[1, 5], [0, 6]]
