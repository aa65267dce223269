"""A short run with a bar."""

import sys

from mixer import MixingTrainer
from tests.helpers import Tokens, arguments, build_model


def train(folder: str) -> None:
    args = arguments(
        folder,
        disable_tqdm=False,
        max_steps=-1,
        num_train_epochs=3,
        per_device_train_batch_size=4,
        eval_strategy="epoch",
        logging_steps=5,
    )
    data = {"a": Tokens(20, 1), "{b}": Tokens(11, 2)}
    MixingTrainer(
        build_model("llama"), args, train_dataset=data, eval_dataset=data, batch_size=lambda step, size: 4 + step // 4
    ).train()


if __name__ == "__main__":
    train(sys.argv[1])
