from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.helpers import GradientRecorder
from tests.mixer.trainer.trl.cases import preferences, sft_mixture
from tests.ranks.warm import Results, launched


def trained(name: str, folder: Path, size: int = 2) -> list[Any]:
    """Gradients, logs and sizes of steps with several micro-batches, and one of which a rank has no samples."""
    make, recorder = preferences if name in PAIRS else sft_mixture, GradientRecorder()
    trainer = make(folder / name, name, per_device=size, callbacks=[recorder])
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    totals = trainer.ledger.timings()["total"].tolist() if trainer.is_world_process_zero() else []
    return [torch.stack(recorder.gradients), logs, totals]


pytestmark = pytest.mark.full
PAIRS = ("dpo", "reward")
NAMES = ("llama", "gpt2", *PAIRS)
results = launched(*(partial(trained, name) for name in NAMES))


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_train_as_one_process(name: str, results: Results, tmp_path: Path) -> None:
    gradients, alone, totals = trained(name, tmp_path, 64)
    logs = results[0][name][1]
    for result in results:
        torch.testing.assert_close(result[name][0], gradients, rtol=0, atol=1e-6)
    for mine, theirs in zip(logs, alone, strict=True):
        names = [key for key in theirs if key.startswith(("loss", "count/", "num_tokens"))]
        assert [mine[key] for key in names] == pytest.approx([theirs[key] for key in names], rel=1e-5)
    # Of one sample both see the same metrics, although one rank has none, or two have run its pair.
    single = totals.index(1)
    own = {"dpo": ["rewards/margins"], "reward": ["margin"]}.get(name, ["entropy", "mean_token_accuracy"])
    for key in own:
        assert logs[single][key] == pytest.approx(alone[single][key], rel=1e-4, abs=1e-7)
