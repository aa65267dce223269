"""What each rank does in the tests of TRL's trainers: `torchrun ... trl_worker.py FOLDER`."""

import sys
from pathlib import Path
from typing import Any

import torch

from mixer import MixingSFTTrainer
from tests.distributed.launch import end_with
from tests.helpers import GradientRecorder, weights_of
from tests.mixer.trl.cases import sft_mixture


def gradients(folder: Path) -> dict[str, Any]:
    """Gradients of updates with several micro-batches, and one of which a rank has no samples."""
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


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    end_with({"gradients": gradients(folder), "resume": resume(folder)}, folder, "results")
