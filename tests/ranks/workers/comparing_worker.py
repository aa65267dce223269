"""What each of two ranks does in the tests of compared losses: `torchrun ... comparing_worker.py FOLDER`."""

import gc
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from mixer import MixingTrainer
from tests.helpers import build_model, three_streams, weights_of
from tests.mixer.comparing import Leaning, Tagger, Watching, build
from tests.mixer.trainer.checkpointing.test_resume import end_of
from tests.mixer.trainer.observers.test_comparing import Silent, compared_entries
from tests.ranks.launch import end_with, message_of
from tests.ranks.workers.recovery_worker import Fault

BOTH = ("excess_loss", "loss_after")


def numbers(trainer: MixingTrainer) -> list[Any]:
    """What the policy saw, to the bit; NaN as text."""
    return [
        [[float(value).hex() for value in values] for values in (seen.excess_losses, seen.losses_after)]
        for seen in trainer.mixing.policy.seen
    ]


def kept(trainer: MixingTrainer) -> list[Any]:
    """The same of the ledger, once it has been written."""
    rows = trainer.ledger.comparisons()
    columns = [rows[need].to_numpy().reshape(-1, len(trainer.streams)) for need in BOTH]
    return [[[float(value).hex() for value in values] for values in both] for both in zip(*columns, strict=True)]


def observed(folder: Path) -> dict[str, Any]:
    """Six steps of nine samples, the fifth of one, which leaves a rank without; and whether ranks had paddings."""
    found: dict[str, Any] = {}
    for name, changes in (("mixed", {}), ("by tokens", {"max_tokens_per_micro_batch": 40})):
        args = {"max_steps": 6, "per_device_train_batch_size": 2}
        trainer = build(folder / name, Watching(*BOTH), args=args, **changes)
        paddings = []
        step = trainer._parts.steps.train

        def counting(model: Any, batch: Any, n: Any = None, step: Any = step, paddings: Any = paddings) -> Any:
            paddings.append(sum(micro.is_padding for micro in batch.micro_batches))
            return step(model, batch, n)

        trainer._parts.steps.train = counting
        trainer.train()
        compared = [compared_entries(trainer), kept(trainer) if trainer.is_world_process_zero() else None]
        found[name] = {"numbers": numbers(trainer), "paddings": sum(paddings), "compared": compared}
    return found


def same_training(folder: Path) -> bool:
    """Whether weights are the same to the bit with and without, dropout and running statistics among them."""
    ends = []
    for name, needs in (("plain", ()), ("comparing", BOTH)):
        trainer = build(folder / name, Watching(*needs), Tagger(dropout=0.3, has_norm=True))
        trainer.train()
        ends.append(weights_of(trainer.model))
    return torch.equal(*ends)


def repeated(folder: Path) -> dict[str, Any]:
    """A run of which rank 1 cannot hold more than 2 rows, beside the one where it can."""
    found: dict[str, Any] = {}
    for name in ("whole", "halved"):
        model, reference = build_model("llama"), build_model("llama")
        with torch.no_grad():
            reference.lm_head.weight.mul_(3.0)
        if name == "halved":
            Fault(model, where="backward")
        trainer = build(
            folder / name,
            Watching(*BOTH),
            model,
            reference_model=reference,
            train_dataset=three_streams(),
            args={"auto_find_batch_size": True, "per_device_train_batch_size": 8},
        )
        trainer.train()
        found[name] = numbers(trainer)
    return {**found, "cap": trainer._parts.run.loader.cap.max_samples}


def resumed(folder: Path) -> list[str]:
    """Names what differs between a run and one that went on from the middle of it."""
    args = {"save_strategy": "steps", "save_steps": 1, "max_steps": 6, "optim": "adamw_torch"}

    def make() -> MixingTrainer:
        return build(folder, Leaning(*BOTH), Tagger(dropout=0.3), args=args)

    whole = make()
    whole.train()
    expected = end_of(whole) if whole.is_world_process_zero() else {}
    different = []
    for step in (2, 5):
        again = make()
        again.train(resume_from_checkpoint=str(folder / f"checkpoint-{step}"))
        end = end_of(again) if expected else {}
        different += [f"{step}: {part}" for part in expected if end[part] != expected[part]]
        dist.barrier()
    return different


def refused(folder: Path) -> list[str]:
    """Messages of runs whose items cannot be told apart."""
    other = Tagger(seed=dist.get_rank())
    return [
        message_of(build(folder / "model", Watching("excess_loss"), Silent()).train),
        message_of(build(folder / "reference", Watching("excess_loss"), reference_model=Silent()).train),
        message_of(build(folder / "ranks", Watching("excess_loss"), reference_model=other).train),
    ]


def main() -> None:
    folder = Path(sys.argv[1])
    gc.collect = lambda *_: 0  # takes longer at each run's beginning than the run
    names = ("observed", "same_training", "repeated", "resumed", "refused")
    results = {name: globals()[name](folder / name) for name in names}
    end_with(results, folder, "comparing")


if __name__ == "__main__":
    main()
