"""Trains with Liger's losses on the CPU: `TRITON_INTERPRET=1 python -m tests.mixer.liger_worker FOLDER`."""

import sys
from pathlib import Path

from mixer import MixingTrainer
from tests.helpers import arguments, build_model, three_streams

LOSSES = ("fused_linear_cross_entropy", "cross_entropy")


def train(folder: Path, loss: str) -> None:
    # The norm cannot be run by the interpreter; the others are left out to be compared without them.
    config = {"rms_norm": False, "rope": False, "swiglu": False, **{name: name == loss for name in LOSSES}}
    args = arguments(folder / loss, use_liger_kernel=True, liger_kernel_config=config)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=three_streams(), batch_size=16)
    trainer.train()
    trainer.ledger.to_pandas().to_json(folder / f"{loss}.json", orient="records")


if __name__ == "__main__":
    for name in LOSSES:
        train(Path(sys.argv[1]), name)
