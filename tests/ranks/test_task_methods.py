"""Methods that know tasks, on two ranks: what one rank does, to rounding."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tests.helpers import weights_of
from tests.ranks.warm import Results, launched, some
from tests.tasks.methods.runs import CASES, build

NAMES = tuple(CASES)
FEW = ("OnlineEWC", "SI", "LwF by task", "ICaRL", "RanPAC", "SLCA")


def ended(name: str, folder: Path) -> dict[str, Any]:
    run = build(folder / name, name)
    scores = run.run().scores
    return {"weights": weights_of(run.model), "scores": scores}


results = launched(
    *(partial(ended, name) for name in FEW), rare=[partial(ended, name) for name in NAMES if name not in FEW]
)


@pytest.mark.parametrize("name", some(NAMES, FEW))
def test_two_ranks_end_as_one(name: str, results: Results, tmp_path: Path) -> None:
    expected = ended(name, tmp_path)
    first, second = (result[name] for result in results)
    assert torch.equal(first["weights"], second["weights"])
    torch.testing.assert_close(first["weights"], expected["weights"], rtol=0, atol=2e-5)
    np.testing.assert_array_equal(first["scores"], second["scores"])
    np.testing.assert_allclose(first["scores"], expected["scores"], atol=1e-6)
