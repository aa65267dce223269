"""What each rank does in the tests of batch sizes that change; `torchrun ... batch_size_worker.py FOLDER`."""

import hashlib
import json
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import TrainerCallback

from mixer import AdaptiveBatchSizeTrainer, LossChange, MixingTrainer, schedules
from tests.helpers import Tokens, arguments, build_model, weights_of
from tests.published import run_script
from tests.ranks.launch import end_with, message_of


class _Record(TrainerCallback):
    """Keeps what each step logs and how many samples this rank had in it."""

    def __init__(self) -> None:
        self.logs: list[tuple[float, float, int]] = []

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, Any], **kwargs: Any) -> None:
        if "train_coverage" in logs:
            self.logs.append((logs["train_coverage"], logs["epoch"], logs["batch_size"]))


def grow(step: int, batch_size: int) -> int:
    """One sample more every five steps."""
    return batch_size + 1 if step > 0 and step % 5 == 0 else batch_size


def _published(folder: Path, num_workers: int, drop_last: bool) -> dict[str, Any]:
    args = arguments(
        folder,
        per_device_train_batch_size=1,
        num_train_epochs=5,
        max_steps=-1,
        logging_steps=1,
        dataloader_num_workers=num_workers,
        dataloader_drop_last=drop_last,
    )
    record = _Record()
    trainer = AdaptiveBatchSizeTrainer(
        batch_size_scheduler=grow,
        model=build_model("llama"),
        args=args,
        train_dataset=Tokens(10, 1),
        callbacks=[record],
    )
    own_sizes = []
    train_step = trainer._parts.steps.train

    def count(model: Any, batch: Any, num_items: Any = None) -> torch.Tensor:
        own_sizes.append(sum(len(micro.stream_ids) for micro in batch.micro_batches if not micro.is_padding))
        return train_step(model, batch, num_items)

    trainer._parts.steps.train = count  # type: ignore[method-assign]
    trainer.train()
    return {"logs": record.logs, "own_sizes": own_sizes, "steps": trainer.state.global_step}


def published(folder: Path) -> dict[str, Any]:
    """The example of the published extension, without and with workers."""
    return {str(number): _published(folder / f"published-{number}", number, drop_last=False) for number in (0, 2)}


def dropping(folder: Path) -> dict[str, Any]:
    """The same where the last batch is dropped."""
    return {str(number): _published(folder / f"dropping-{number}", number, drop_last=True) for number in (0, 2)}


def script(folder: Path) -> dict[str, Any]:
    """The script of the published extension, as it is but for its import."""
    rank = torch.distributed.get_rank()
    return {
        str(drop_last): run_script(folder / "model", folder / str(drop_last), drop_last, rank=rank)
        for drop_last in (False, True)
    }


def by_hand(folder: Path) -> list[str]:
    """The errors of a size that only one rank sets, and of one with less than a sample a rank."""
    return [_error(folder / "one-rank", {1: 6}, every_rank=False), _error(folder / "too-small", {1: 1})]


def _error(folder: Path, sizes: dict[int, int], every_rank: bool = True) -> str:
    class Setting(TrainerCallback):
        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in sizes and (every_rank or args.process_index == 1):
                trainer.mixing.set_batch_size(sizes[state.global_step])

    args = arguments(folder, max_steps=4, per_device_train_batch_size=2)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=Tokens(40, 1), callbacks=[Setting()])
    return message_of(trainer.train)


def wrong_sizes(folder: Path) -> list[str]:
    """The errors of functions that give no size."""
    messages = []
    for number, wrong in enumerate((0, -1, float("nan"), 1.5)):
        args = arguments(folder / f"wrong-{number}", max_steps=4, per_device_train_batch_size=2)

        def function(step: int, batch_size: int, wrong: float = wrong) -> Any:
            return wrong if step == 2 else batch_size

        trainer = AdaptiveBatchSizeTrainer(function, None, build_model("llama"), args, train_dataset=Tokens(40, 1))
        messages.append(message_of(trainer.train))
    return messages


def schedules_agree(folder: Path) -> str:
    """A hash of weights and sizes after a run whose sizes follow the loss, the gradient and the learning rate."""
    args = arguments(
        folder, max_steps=-1, num_train_epochs=3, per_device_train_batch_size=3, max_grad_norm=1.0, optim="adamw_torch"
    )
    schedule = schedules.SmoothedLossChange(
        0.02, 0.5, 1, factor=1.4, otherwise=0.7, gradient_norm=True, initial=8, maximum=30, learning_rate="sqrt"
    )
    streams = {"a": Tokens(40, 1), "b": Tokens(23, 2), "c": Tokens(11, 3)}
    policy = LossChange(num_warmup_observations=1)
    trainer = MixingTrainer(build_model("llama"), args, train_dataset=streams, batch_size=schedule, mixing=policy)
    trainer.train()
    clock = trainer.mixing.clock
    state = [weights_of(trainer.model).tolist(), clock.state_dict(), trainer.mixing.state_dict()]
    return hashlib.sha256(json.dumps(state).encode()).hexdigest()


def main() -> None:
    folder = Path(sys.argv[1])
    names = ("published", "dropping", "script", "by_hand", "wrong_sizes", "schedules_agree")
    results = {name: globals()[name](folder / name) for name in names}
    end_with(results, folder, "batch-size")


if __name__ == "__main__":
    main()
