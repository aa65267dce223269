"""Losses and gradients of an objective's targets on two ranks."""

from pathlib import Path
from typing import Any

import numpy as np

from mixer import MarginalValue
from mixer.measurements import Alignment
from tests.mixer.measurements.test_targets import Aligned, train
from tests.ranks.warm import Results, assert_as_alone, launched


def measured(folder: Path) -> list[Any]:
    """What is seen of targets, and the mixture that follows."""
    args, policy = {"max_steps": 8, "per_device_train_batch_size": 2}, Aligned()
    train(folder / "watched", policy, args=args)
    joined = Aligned(joined=True)
    train(folder / "joined", joined, args=args)
    moved = train(folder / "moved", MarginalValue(rate=1.0), args=args)
    found = [o[Alignment] for own in (policy, joined) for o in own.seen if o[Alignment] is not None]
    numbers = [[one.losses, one.alignment, one.error] for one in found]
    seen = np.concatenate([np.ravel(value) for one in numbers for value in one])
    return [seen, list(moved.mixing.weights.values())]


results = launched(measured)


def test_two_ranks_measure_what_one_does(results: Results, tmp_path: Path) -> None:
    assert_as_alone(results, "measured", measured(tmp_path))
