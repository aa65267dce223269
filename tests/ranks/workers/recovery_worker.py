"""What each rank does in the tests of memory that runs out: `torchrun ... recovery_worker.py FOLDER SCENARIO...`."""

import signal
import sys
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import datasets
import torch
from torch import nn

from mixer import MixingTrainer
from tests.helpers import GradientRecorder, Tokens, arguments, build_model, three_streams, weights_of
from tests.ranks.launch import end_with, message_of

PLACES = ("forward", "training", "backward")


class Fault:
    """Raises an error on rank 1, in micro-batches of more rows than so many, and writes down what is run.

    Args:
        model: The model.
        most_rows: The rows that still fit.
        where: In the `"forward"`, only in that of `"training"`, or in the `"backward"`.
        error: What is raised.
        from_forward: Number of the first forward to train that may fail.
    """

    def __init__(
        self,
        model: nn.Module,
        most_rows: int = 2,
        where: str = "forward",
        error: Exception | None = None,
        from_forward: int = 0,
    ):
        self.most_rows, self.where, self.from_forward = most_rows, where, from_forward
        self.error = error or torch.OutOfMemoryError("no room")
        self.rows: list[int] = []
        model.register_forward_pre_hook(self.before, with_kwargs=True)
        model.get_input_embeddings().register_forward_hook(self.after)

    def before(self, module: nn.Module, args: Any, kwargs: Any) -> None:
        rows = len(kwargs["input_ids"])
        trains = torch.is_grad_enabled()
        if trains:
            self.rows.append(rows)
        if self.where == "forward" or (self.where == "training" and trains):
            self.fail(rows)

    def after(self, module: nn.Module, args: Any, output: torch.Tensor) -> None:
        if self.where == "backward" and output.requires_grad:
            output.register_hook(lambda gradient: self.fail(len(gradient)))

    def fail(self, rows: int) -> None:
        if torch.distributed.get_rank() == 1 and rows > self.most_rows and len(self.rows) >= self.from_forward:
            raise self.error


def _trainer(
    folder: Path, model: nn.Module | None = None, streams: Any = None, batch_size: int = 9, **changes: Any
) -> MixingTrainer:
    recorder = GradientRecorder()
    trainer = MixingTrainer(
        model or build_model("llama"),
        arguments(folder, **{"max_steps": 6, "auto_find_batch_size": True, **changes}),
        train_dataset=streams or three_streams(),
        mixing="Uniform",
        batch_size=batch_size,
        max_tokens_per_micro_batch=96 if folder.name.startswith("tokens") else None,
        callbacks=[recorder],
    )
    trainer.recorder = recorder
    return trainer


def _keep(folder: Path, name: str, trainer: MixingTrainer) -> None:
    rank = trainer.args.process_index
    torch.save((torch.stack(trainer.recorder.gradients), weights_of(trainer.model)), folder / f"{name}-{rank}.pt")


def undisturbed(folder: Path) -> None:
    trainer = _trainer(folder / "undisturbed", auto_find_batch_size=False)
    trainer.train()
    _keep(folder, "undisturbed", trainer)


def repeated(folder: Path) -> dict[str, Any]:
    """Runs in which rank 1 cannot hold more than 2 rows: what was run, and which steps were synchronised."""
    results: dict[str, Any] = {}
    for name in PLACES:
        model = build_model("llama")
        fault = Fault(model, where=name)
        trainer = _trainer(folder / name, model)
        armed = Mock(wraps=trainer._parts.recovery._train_armed)
        trainer._parts.recovery._train_armed = armed
        trainer.train()
        _keep(folder, name, trainer)
        results[name] = {
            "rows": fault.rows,
            "num_armed": armed.call_count,
            "cap": trainer._parts.run.loader.cap.max_samples,
            "totals": trainer.ledger.timings()["total"].tolist(),
        }
    return results


class _Experts(nn.Module):
    """A model of which one expert is used by rows that begin with an even token only, and one never."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build_model("bert-classifier")
        self.even, self.odd, self.unused = (nn.Linear(3, 3) for _ in range(3))
        self.norm = nn.BatchNorm1d(3, momentum=0.5)

    def get_input_embeddings(self) -> nn.Module:
        return self.inner.get_input_embeddings()

    def forward(self, input_ids: torch.Tensor, attention_mask: torch.Tensor, labels: torch.Tensor) -> Any:
        logits = self.inner(input_ids=input_ids, attention_mask=attention_mask).logits
        self.norm(logits.detach())
        even = input_ids[:, 0] % 2 == 0
        parts = [expert(logits[rows]) for expert, rows in ((self.even, even), (self.odd, ~even)) if rows.any()]
        order = torch.cat([even.nonzero(), (~even).nonzero()]).squeeze(1).argsort()
        logits = torch.cat(parts)[order]
        return {"loss": nn.functional.cross_entropy(logits, labels), "logits": logits}


def experts(folder: Path) -> dict[str, Any]:
    """Parameters that get a gradient on one rank only, or on none, and statistics that a forward moves on."""
    runs = {"plain": (4, False), "small": (2, True), "halved": (8, True)}
    gradients, means = {}, {}
    for name, (size, auto) in runs.items():
        torch.manual_seed(1)
        model = _Experts()
        if name == "halved":
            Fault(model, where="backward")
        trainer = _trainer(
            folder / f"experts-{name}",
            model,
            {"a": Tokens(24, 1, "sequence-classification")},
            batch_size=8,
            auto_find_batch_size=auto,
            ddp_find_unused_parameters=True,
            ddp_broadcast_buffers=True,
            per_device_train_batch_size=size,
            max_steps=2,
        )
        trainer.train()
        gradients[name], means[name] = torch.stack(trainer.recorder.gradients), model.norm.running_mean.clone()
    return {
        "difference": float((gradients["plain"] - gradients["halved"]).abs().max()),
        "same_statistics": torch.equal(means["small"], means["halved"]),
        "unused_is_none": model.unused.weight.grad is None,
    }


def iterable_by_tokens(folder: Path) -> dict[str, Any]:
    """Micro-batches by tokens, of which the ranks agree on the number, made of rows that come only once."""
    found = []
    for auto in (False, True):
        rows = [{name: values.tolist() for name, values in row.items()} for row in Tokens(40, 1).rows]
        streams = {"rows": datasets.Dataset.from_list(rows).to_iterable_dataset(), "more": Tokens(12, 2)}
        model = build_model("llama")
        if auto:
            Fault(model)
        trainer = _trainer(folder / f"tokens-{auto}", model, streams, auto_find_batch_size=auto, max_steps=4)
        trainer.train()
        found.append(torch.stack(trainer.recorder.gradients))
    return {"difference": float((found[0] - found[1]).abs().max()), "cap": trainer._parts.run.loader.cap.max_tokens}


def failures(folder: Path) -> dict[str, str]:
    """Errors on rank 1 that end both."""
    found: dict[str, str] = {}
    for name, changes, auto in (
        ("no_sample_fits", {"most_rows": 0}, True),
        ("other_error", {"where": "training", "error": KeyError("lost")}, True),
        ("other_error_of_a_backward", {"where": "backward", "error": ValueError("bad")}, True),
        ("probe_without_recovery", {}, False),
        ("other_error_of_a_probe", {"error": KeyError("lost")}, False),
    ):
        model = build_model("llama")
        Fault(model, **changes)
        found[name] = message_of(_trainer(folder / name, model, auto_find_batch_size=auto).train)
    return found


def closed_window(folder: Path) -> None:
    """Memory that runs out in a step that is no larger than the ones before, on rank 1, which ends by its error."""
    model = build_model("llama")
    Fault(model, where="backward", from_forward=4)
    trainer = _trainer(folder / "closed", model, batch_size=8)
    rank = torch.distributed.get_rank()
    if rank == 0:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the launcher, else, may be faster than the broken connection
    try:
        trainer.train()
    except Exception as error:
        (folder / f"closed-{rank}.txt").write_text(f"{type(error).__name__}: {error}")
        raise


def main() -> None:
    folder = Path(sys.argv[1])
    results = {name: globals()[name](folder) for name in sys.argv[2:]}
    end_with(results, folder, "recovery")


if __name__ == "__main__":
    main()
