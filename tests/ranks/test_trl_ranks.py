from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from mixer.models.trl import gathering, rows_of_ranks
from tests.helpers import GradientRecorder, weights_of
from tests.mixer.trainer.trl.cases import preferences, sft_mixture
from tests.ranks.warm import launched


def trained(name: str, folder: Path, size: int = 2) -> list[Any]:
    """Gradients, logs and sizes of steps with several micro-batches, and one of which a rank has no samples."""
    make, recorder = preferences if name in PAIRS else sft_mixture, GradientRecorder()
    trainer = make(folder / name, name, per_device=size, callbacks=[recorder])
    trainer.train()
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    totals = trainer.ledger.timings()["total"].tolist() if trainer.is_world_process_zero() else []
    return [torch.stack(recorder.gradients), logs, totals]


def resume(folder: Path) -> bool:
    """Whether a run's second half from a checkpoint ends as the whole one."""
    ends = []
    for name, checkpoint in (("whole", None), ("parts", str(folder / "whole" / "checkpoint-3"))):
        trainer = sft_mixture(folder / name, "llama", per_device=2, save_strategy="steps", save_steps=3)
        trainer.train(resume_from_checkpoint=checkpoint)
        ends.append(weights_of(trainer.model))
    return torch.equal(*ends)


def gathered(folder: Path) -> list[list[Any]]:
    """What all ranks get of rows in unequal numbers, of a number each, and of those of a single rank."""
    trainer = sft_mixture(folder / "gathered", "llama", per_device=2)
    rank, found = trainer.args.process_index, []
    rows = torch.arange(2.0 * (rank + 1)).reshape(-1, 2)
    for counts in (True, rank == 1, False):
        with gathering(trainer, rows_of_ranks(trainer.accelerator, counts)):
            of_rows, numbers = trainer.accelerator.gather(rows), trainer.accelerator.gather_for_metrics(rows.sum())
        found += [of_rows.tolist(), numbers.tolist()]
    return found


pytestmark = pytest.mark.full
PAIRS = ("dpo", "reward")
NAMES = ("llama", "gpt2", *PAIRS)
results = launched(*(partial(trained, name) for name in NAMES), resume, gathered)


@pytest.mark.parametrize("name", NAMES)
def test_two_ranks_train_as_one_process(name: str, results: list[dict[str, Any]], tmp_path: Path) -> None:
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


def test_two_ranks_go_on_to_the_bit_and_gather_rows_in_unequal_numbers(results: list[dict[str, Any]]) -> None:
    first, second = [[0.0, 1.0]], [[0.0, 1.0], [2.0, 3.0]]
    for result, own in zip(results, (first, second), strict=True):
        assert result["resume"]
        assert result["gathered"] == [[*first, *second], [1.0, 6.0], second, [6.0], own, [sum(map(sum, own))]]
