"""Methods that know tasks on two ranks, those for language models and for prompts among them."""

import os
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch

from tests.helpers import weights_of
from tests.mixer.checkpoint.test_resume import Instants, Killed
from tests.ranks.warm import Results, launched, some
from tests.tasks.methods import prompted, runs, test_language_methods as language

PROMPTS = [f"vit {method}" for method in prompted.METHODS]
BUILDERS: dict[str, Any] = {
    **dict.fromkeys(runs.CASES, runs.build),
    **dict.fromkeys(language.RUNS, language.build_named),
    **dict.fromkeys(PROMPTS, prompted.build_named),
}
FEW = ("OnlineEWC", "SI", "LwF by task", "ICaRL", "RanPAC", "SLCA", "inf-lora", "o-lora", "pseudo-samples")
FEW += ("vit dual", "vit coda")


def build(folder: Path, name: str, instants: Instants | None = None, **changes: Any) -> Any:
    """The run of one rank; a step has as many samples on any number of ranks."""
    if name in language.RUNS:
        changes["per_device_train_batch_size"] = 4 // int(os.environ.get("WORLD_SIZE", "1"))
    if name in PROMPTS:  # Adam would blow up the rounding of gradients that are nearly 0
        changes |= {"optim": "sgd", "learning_rate": 0.3}
    return BUILDERS[name](folder, name, instants, **changes)


@mock.patch("tasks.methods.pseudo_samples._ROWS", 2)  # so that each rank writes some
def ended(name: str, folder: Path) -> dict[str, Any]:
    """A run that nobody kills; on two ranks one, too, that is killed in its second task and resumed."""
    run = build(folder / name, name, instants := Instants())
    found = {"scores": run.run().scores, "weights": weights_of(run.model)}
    if name not in runs.CASES and torch.distributed.is_initialized():
        second = [number for number, place in enumerate(instants.names) if place == "step 3"][1]
        with pytest.raises(Killed):
            build(folder / f"{name}, killed", name, Instants(second)).run()
        torch.distributed.barrier()
        resumed = build(folder / f"{name}, killed", name, seed=torch.distributed.get_rank())
        resumed.run(resume=True)
        assert torch.equal(weights_of(resumed.model), found["weights"])
    return found


results = launched(
    *(partial(ended, name) for name in FEW), rare=[partial(ended, name) for name in BUILDERS if name not in FEW]
)


@pytest.mark.parametrize("name", some(BUILDERS, FEW))
def test_two_ranks_end_as_one_and_resumed_runs_as_whole_ones(name: str, results: Results, tmp_path: Path) -> None:
    expected, tolerance = ended(name, tmp_path), 1e-4 if name in language.RUNS else 2e-5
    tolerance = 2**-9 if "half" in name else tolerance  # a few units in the last place of half precision
    first, second = (result[name] for result in results)
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], expected["weights"], rtol=0, atol=tolerance)
    np.testing.assert_array_equal(first["scores"], second["scores"])
    np.testing.assert_allclose(first["scores"], expected["scores"], atol=tolerance)
