"""What each rank does where steps have to be one micro-batch: `torchrun ... one_pass_worker.py FOLDER`."""

import sys
from pathlib import Path
from typing import Any

from mixer import GroupDRO, MixingTrainer
from tests.helpers import arguments, build_model, three_streams
from tests.mixer.trainer.test_one_pass import Lomo
from tests.ranks.launch import end_with, message_of


def new_trainer(folder: Path, kind: type = MixingTrainer, mixing: Any = None, **options: Any) -> MixingTrainer:
    args = arguments(folder, per_device_train_batch_size=4, **options)
    trainer: MixingTrainer = kind(
        build_model("llama"), args, train_dataset=three_streams(), batch_size=8, mixing=mixing
    )
    return trainer


if __name__ == "__main__":
    target = Path(sys.argv[1])
    errors = {
        "static": message_of(new_trainer(target / "a", mixing=GroupDRO(), ddp_static_graph=True).train),
        "lomo": message_of(new_trainer(target / "b", Lomo, GroupDRO(), optim="lomo").train),
        "one micro-batch": message_of(new_trainer(target / "c", ddp_static_graph=True).train),
    }
    end_with(errors, target, "one_pass")
