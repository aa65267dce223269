"""Methods of prompts on two ranks: what one rank does, to rounding, also after a break."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers import weights_of
from tests.mixer.checkpoint.test_resume import Instants, Killed
from tests.ranks.warm import Results, launched, some
from tests.tasks.methods.prompted import METHODS, build_named

NAMES = tuple(f"vit {method}" for method in METHODS)
FEW = ("vit dual", "vit coda")


def ended(name: str, folder: Path) -> dict[str, Any]:
    """A run that nobody kills, and one that is killed in its second task and resumed."""
    step = {"optim": "sgd", "learning_rate": 0.3}  # Adam would blow up the rounding of gradients that are nearly 0
    run = build_named(folder / name, name, instants := Instants(), **step)
    scores = run.run().scores
    second = [number for number, place in enumerate(instants.names) if place == "step 3"][1]
    with pytest.raises(Killed):
        build_named(folder / f"{name}, killed", name, Instants(second), **step).run()
    if torch.distributed.is_initialized():
        torch.distributed.barrier()
    resumed = build_named(folder / f"{name}, killed", name, seed=7, **step)
    resumed.run(resume=True)
    return {"weights": weights_of(run.model), "resumed": weights_of(resumed.model), "scores": scores}


results = launched(
    *(partial(ended, name) for name in FEW), rare=[partial(ended, name) for name in NAMES if name not in FEW]
)


@pytest.mark.parametrize("name", some(NAMES, FEW))
def test_two_ranks_end_as_one_and_resumed_runs_as_whole_ones(name: str, results: Results, tmp_path: Path) -> None:
    expected = ended(name, tmp_path)
    first, second = (result[name] for result in results)
    assert torch.equal(first["weights"], second["weights"])
    assert torch.equal(first["weights"], first["resumed"])
    torch.testing.assert_close(first["weights"], expected["weights"], rtol=0, atol=2e-5)
    np.testing.assert_array_equal(first["scores"], second["scores"])
    np.testing.assert_allclose(first["scores"], expected["scores"], atol=1e-6)
