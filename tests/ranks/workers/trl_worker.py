"""What each rank does in the tests of TRL's trainers: `torchrun ... trl_worker.py FOLDER`."""

import sys
from pathlib import Path
from typing import Any

import torch

from mixer import MixingSFTTrainer
from mixer.models.trl import gathering, rows_of_ranks
from tests.helpers import GradientRecorder, weights_of
from tests.mixer.trainer.trl.cases import preferences, sft_mixture
from tests.ranks.launch import end_with


def gradients(folder: Path) -> dict[str, Any]:
    """Gradients of steps with several micro-batches, and one of which a rank has no samples."""
    results: dict[str, Any] = {}
    for name in ("llama", "gpt2"):
        recorder = GradientRecorder()
        trainer = sft_mixture(folder / name, name, per_device=2, callbacks=[recorder])
        trainer.train()
        torch.save(torch.stack(recorder.gradients), folder / f"{name}-rank{trainer.args.process_index}.pt")
        results[name] = [entry for entry in trainer.state.log_history if "loss" in entry]
    return results


def resume(folder: Path) -> dict[str, Any]:
    """A run, and its second half from a checkpoint."""

    def run(name: str, resume_from: str | None) -> MixingSFTTrainer:
        trainer = sft_mixture(folder / name, "llama", per_device=2, save_strategy="steps", save_steps=3)
        trainer.train(resume_from_checkpoint=resume_from)
        return trainer

    whole = run("whole", None)
    parts = run("parts", str(folder / "whole" / "checkpoint-3"))
    return {"same": torch.equal(weights_of(whole.model), weights_of(parts.model))}


def pairs(folder: Path) -> dict[str, Any]:
    """Gradients of preferences and rewards, and of a rank without a pair."""
    results: dict[str, Any] = {}
    for kind in ("dpo", "reward"):
        recorder = GradientRecorder()
        trainer = preferences(folder / kind, kind, per_device=2, callbacks=[recorder])
        trainer.train()
        torch.save(torch.stack(recorder.gradients), folder / f"{kind}-rank{trainer.args.process_index}.pt")
        results[kind] = [entry for entry in trainer.state.log_history if "loss" in entry]
    return {**results, "gathered": gathered(trainer)}


def gathered(trainer: Any) -> list[list[Any]]:
    """What all ranks get of rows in unequal numbers, of a number each, and of those of a single rank."""
    rank = trainer.args.process_index
    rows, found = torch.arange(2.0 * (rank + 1)).reshape(-1, 2), []
    for counts in (True, rank == 1, False):
        with gathering(trainer, rows_of_ranks(trainer.accelerator, counts)):
            of_rows, numbers = trainer.accelerator.gather(rows), trainer.accelerator.gather_for_metrics(rows.sum())
        found += [of_rows.tolist(), numbers.tolist()]
    return found


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    end_with({"gradients": gradients(folder), "resume": resume(folder), "pairs": pairs(folder)}, folder, "results")
