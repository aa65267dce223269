"""Forks of a run on two ranks."""

from pathlib import Path
from typing import Any

import numpy as np

from tests.helpers import weights_of
from tests.mixer.comparing import Tagger
from tests.mixer.measurements.test_forks import forked, train
from tests.ranks.warm import Results, assert_as_alone, launched


def compared(folder: Path) -> list[Any]:
    """What the forks of a run have shown, and the weights at its end."""
    args = {"per_device_train_batch_size": 2, "max_grad_norm": 0.1}
    trainer = train(folder, policy := forked(at=(0.5, 0.75)), model=Tagger(), args=args)
    terms = policy.explain()
    return [np.array([terms["gain of its fork"], terms["standard error"]]), weights_of(trainer.model).numpy()]


results = launched(compared)


def test_two_ranks_compare_as_one_does(results: Results, tmp_path: Path) -> None:
    assert_as_alone(results, "compared", compared(tmp_path))
