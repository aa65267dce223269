"""Methods for language models on two ranks."""

from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from tests.helpers import weights_of
from tests.mixer.checkpoint.test_resume import Instants, Killed
from tests.ranks.warm import launched, some
from tests.tasks.methods.test_language_methods import RUNS, build_named

FEW = ("inf-lora", "o-lora", "pseudo-samples")


def build_here(folder: Path, name: str, instants: Instants | None = None, seed: int = 0) -> Any:
    """The run of one rank; a step has as many samples on any number of ranks."""
    num_ranks = torch.distributed.get_world_size() if torch.distributed.is_initialized() else 1
    size = {"per_device_train_batch_size": 4 // num_ranks}
    return build_named(folder, name, instants, seed, **size)


def ended(name: str, folder: Path) -> dict[str, Any]:
    """A run that nobody kills, and one that is killed in its second task and resumed."""
    with mock.patch("tasks.methods.pseudo_samples._ROWS", 2):  # so that each rank writes some
        run = build_here(folder / name, name, instants := Instants())
        run.run()
        second = [number for number, place in enumerate(instants.names) if place == "step 3"][1]
        with pytest.raises(Killed):
            build_here(folder / f"{name}, killed", name, Instants(second)).run()
        torch.distributed.barrier()
        resumed = build_here(folder / f"{name}, killed", name, seed=torch.distributed.get_rank())
        resumed.run(resume=True)
    return {"weights": weights_of(run.model).tolist(), "resumed": weights_of(resumed.model).tolist()}


results = launched(*(partial(ended, name) for name in FEW), rare=[partial(ended, n) for n in RUNS if n not in FEW])


@pytest.mark.parametrize("name", some(RUNS, FEW))
def test_two_ranks_end_alike_and_as_one_and_resumed_runs_as_whole_ones(name, results, tmp_path) -> None:
    first, second = (result[name] for result in results)
    assert first["weights"] == second["weights"] == first["resumed"] == second["resumed"]
    with mock.patch("tasks.methods.pseudo_samples._ROWS", 2):
        run = build_here(tmp_path, name)
        run.run()
    np.testing.assert_allclose(first["weights"], weights_of(run.model), rtol=0, atol=1e-4)
