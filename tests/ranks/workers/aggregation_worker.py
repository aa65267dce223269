"""What each rank does in the tests of aggregated gradients: `torchrun ... aggregation_worker.py FOLDER SCENARIO...`."""

import sys
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mixer import MixingTrainer, schedules
from mixer.gradients.conflict import Aggregator
from tests.helpers import build_model, three_streams, weights_of
from tests.mixer.aggregated import Classifier, TwoSides, logged, make_trainer
from tests.ranks.launch import end_with, message_of

CASES: dict[str, dict[str, Any]] = {
    "pcgrad": {},
    "cagrad": {},
    "mgda": {},
    "nash-mtl": {},
    "upgrad": {"max_grad_norm": 0.1},
    # Fewer samples than streams: ranks without one of a stream, and streams that are absent.
    "upgrad of few": {"batch_size": 3, "max_steps": 8},
    "upgrad on two sides": {"model": TwoSides, "ddp_find_unused_parameters": True},
    "upgrad in buckets": {"ddp_bucket_cap_mb": 1, "optim": "adamw_torch", "learning_rate": 0.05},
}


def run(folder: Path, name: str, **changes: Any) -> MixingTrainer:
    """Trains a case; on one rank or several it is the same run."""
    trainer = make_trainer(folder, name.split()[0], **{**CASES[name], **changes})
    trainer.train()
    return trainer


def found_in(trainer: MixingTrainer) -> dict[str, torch.Tensor]:
    keys = ["conflicts", *(f"conflict_weight/{name}" for name in "abc"), "grad_norm"]
    return {"weights": weights_of(trainer.model), **{key: torch.tensor(logged(trainer, key)) for key in keys}}


def same(folder: Path) -> None:
    for name in CASES:
        trainer = run(folder / "same", name)
        torch.save(found_in(trainer), folder / f"same-{name}-{trainer.args.process_index}.pt")


class Small(Classifier):
    """On rank 1 there is no room for more than one row in a backward."""

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        output = super().forward(x, labels)
        if output["logits"].requires_grad and len(x) > 1 and torch.distributed.get_rank() == 1:
            output["logits"].register_hook(no_room)
        return output


def no_room(gradient: torch.Tensor) -> None:
    raise torch.OutOfMemoryError("no room")


def repeated(folder: Path) -> None:
    trainer = run(folder / "repeated", "pcgrad", model=Small, auto_find_batch_size=True)
    assert trainer._parts.run.loader.cap.max_samples == 1
    torch.save(found_in(trainer), folder / f"repeated-pcgrad-{trainer.args.process_index}.pt")


def resumed(folder: Path) -> None:
    run(folder / "cut", "pcgrad", save_strategy="steps", save_steps=2)
    trainer = make_trainer(folder / "resumed", "pcgrad")
    trainer.train(resume_from_checkpoint=str(folder / "cut" / "checkpoint-2"))
    torch.save(found_in(trainer), folder / f"resumed-pcgrad-{trainer.args.process_index}.pt")


def other_devices(folder: Path) -> dict[str, Any]:
    """Rank 1 multiplies a little differently, as another device may: all go by what rank 0 finds."""
    original = Aggregator.weigh
    if torch.distributed.get_rank() == 1:
        Aggregator.weigh = lambda self, gramian, *rest: original(self, gramian * 1.001, *rest) + 1e-3  # type: ignore
    trainer = run(folder / "other", "mgda")
    Aggregator.weigh = original  # type: ignore[method-assign]
    return {"weights": weights_of(trainer.model).tolist()}


def failures(folder: Path) -> dict[str, str]:
    """What each rank says where rank 1 finds no weights."""

    def failing(*arguments: Any) -> Any:
        raise ValueError("no way out")

    original = Aggregator.weigh
    trainer = make_trainer(folder / "failing", "upgrad")
    if torch.distributed.get_rank() == 1:
        Aggregator.weigh = failing  # type: ignore[method-assign]
    message = message_of(trainer.train)
    Aggregator.weigh = original  # type: ignore[method-assign]
    return {"weights": message}


class _Sparse(Classifier):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 2, sparse=True)


class _Ignoring(Classifier):
    """Has a layer that DDP leaves alone."""

    _ddp_params_and_buffers_to_ignore = ("body.bias",)


def refusals(folder: Path) -> dict[str, str]:
    def message(**changes: Any) -> str:
        return message_of(lambda: make_trainer(folder / "refused", "upgrad", **changes).train())

    def by_tokens() -> Any:
        args = make_trainer(folder / "refused").args
        data = three_streams()
        return MixingTrainer(
            build_model("llama"), args, train_dataset=data, conflict="upgrad", max_tokens_per_micro_batch=40
        )

    each_batch = {"gradient_accumulation_kwargs": {"sync_each_batch": True}}
    return {
        "tokens": message_of(by_tokens),
        "sparse": message(model=_Sparse),
        "ignored": message(model=_Ignoring),
        "each_batch": message(accelerator_config=each_batch),
        "noise": message(batch_size=schedules.NoiseScale()),
    }


def main() -> None:
    folder = Path(sys.argv[1])
    results = {name: globals()[name](folder) for name in sys.argv[2:]}
    end_with(results, folder, "aggregation")


if __name__ == "__main__":
    main()
