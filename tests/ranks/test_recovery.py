"""Memory that runs out on one of two ranks."""

import signal
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest
import torch
from torch import nn

from mixer import MixingTrainer
from tests.helpers import GradientRecorder, Tokens, build_model, three_streams, weights_of
from tests.mixer.trainer.runs import make
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched, run_warm, some


class Fault:
    """Raises an error on rank 1, in micro-batches of more rows than fit, and writes down what is run.

    It does so in each forward, only in those of training, or in the backward, from that of some number on.
    """

    def __init__(
        self, model: nn.Module, most_rows: int = 2, where: str = "forward", error: Any = None, from_forward: int = 0
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
    rules = {"mixing": "Uniform", "batch_size": batch_size, "callbacks": [recorder := GradientRecorder()]}
    rules |= {"train_dataset": streams or three_streams(), "max_steps": 6, "auto_find_batch_size": True, **changes}
    trainer = make(folder, model or "llama", **rules)
    trainer.recorder = recorder
    return trainer


def undisturbed(folder: Path) -> Any:
    trainer = _trainer(folder / "undisturbed", auto_find_batch_size=False)
    trainer.train()
    return torch.stack(trainer.recorder.gradients), weights_of(trainer.model)


def repeated(where: str, folder: Path) -> dict[str, Any]:
    """A run in which rank 1 cannot hold more than 2 rows: what was run, and which steps were synchronised."""
    fault = Fault(model := build_model("llama"), where=where)
    trainer = _trainer(folder / where, model)
    armed = Mock(wraps=trainer._parts.agreement.train_repeatably)
    trainer._parts.agreement.train_repeatably = armed
    trainer.train()
    totals = trainer.ledger.timings()["total"].tolist() if trainer.is_world_process_zero() else []
    cap = trainer._parts.run.splitting.cap.max_samples
    found = {"rows": fault.rows, "num_armed": armed.call_count, "cap": cap, "totals": totals}
    return {**found, "ends": (torch.stack(trainer.recorder.gradients), weights_of(trainer.model))}


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


def experts(folder: Path) -> bool:
    """Parameters that get a gradient on one rank only, or on none, and statistics that a forward moves on."""
    gradients, means = {}, {}
    for name, size, auto in (("plain", 4, False), ("small", 2, True), ("halved", 8, True)):
        torch.manual_seed(1)
        model = _Experts()
        if name == "halved":
            Fault(model, where="backward")
        options = {"auto_find_batch_size": auto, "per_device_train_batch_size": size, "max_steps": 2}
        options |= {"ddp_find_unused_parameters": True, "ddp_broadcast_buffers": True}
        data = {"a": Tokens(24, 1, "sequence-classification")}
        trainer = _trainer(folder / f"experts-{name}", model, data, batch_size=8, **options)
        trainer.train()
        gradients[name], means[name] = torch.stack(trainer.recorder.gradients), model.norm.running_mean.clone()
        assert model.unused.weight.grad is None
    torch.testing.assert_close(gradients["plain"], gradients["halved"], rtol=0, atol=1e-6)
    return torch.equal(means["small"], means["halved"])


FAILURES: dict[str, tuple[dict[str, Any], bool, str]] = {
    "no sample fits": ({"most_rows": 0}, True, "Step 1 ran out of memory on rank 1 with a single sample"),
    "first forward without recovery": ({}, False, "Set per_device_train_batch_size=2, with batch_size=9"),
    "other error": ({"where": "training", "error": KeyError("lost")}, True, "KeyError: 'lost'"),
    "other error of the first forward": ({"error": KeyError("lost")}, False, "KeyError: 'lost'"),
    "other error of a backward": ({"where": "backward", "error": ValueError("bad")}, True, "ValueError: bad"),
}


def failure(name: str, folder: Path) -> str:
    fault, auto, _ = FAILURES[name]
    Fault(model := build_model("llama"), **fault)
    return message_of(_trainer(folder / name, model, auto_find_batch_size=auto).train)


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


results = launched(
    *(undisturbed, partial(repeated, "backward"), partial(failure, "other error")),
    rare=[
        *(partial(repeated, "forward"), partial(repeated, "training"), experts),
        *(partial(failure, name) for name in FAILURES if name != "other error"),
    ],
)


@pytest.mark.parametrize("where", some(["forward", "training", "backward"], ["backward"]))
def test_the_step_is_repeated_and_the_run_is_the_undisturbed_one(where: str, results: Results) -> None:
    expected = results[0]["undisturbed"]
    assert expected[0].abs().max() > 1e-3
    for result in results:
        torch.testing.assert_close(result[where]["ends"], expected, rtol=0, atol=1e-6)
        assert result[where]["cap"] == 2
        # Five rows at most on a rank fit into three micro-batches; the first step, and the one after it, are armed.
        assert result[where]["num_armed"] == 2
    found, tried = results[0][where], [5]
    assert found["totals"] == [9, 9, 9, 9, 1, 9]
    assert found["rows"] == tried + [2, 2, 1] * 4 + [1] + [2, 2, 1]


@pytest.mark.full
def test_gradients_on_one_rank_only_count_and_statistics_are_put_back(results: Results) -> None:
    assert all(result["experts"] for result in results)


@pytest.mark.parametrize("name", some(FAILURES, ["other error"]))
def test_errors_of_one_rank_end_both(results: Results, name: str) -> None:
    first, second = (result[name] for result in results)
    told = FAILURES[name][2]
    if name == "no sample fits":
        assert all(message.startswith("MicroBatchMemoryError") and told in message for message in (first, second))
    elif name == "first forward without recovery":
        assert second.startswith("MicroBatchMemoryError")
        assert told in second
        assert first.startswith("RemoteError: rank 1 failed: OutOfMemoryError")
    else:
        assert second == told
        assert first.startswith(f"RemoteError: rank 1 failed: {told}")


@pytest.mark.full
def test_a_closed_window_ends_both_ranks_with_the_cap_to_set(tmp_path: Path) -> None:
    codes, _ = run_warm(tmp_path, closed_window)
    assert all(codes)
    for rank in range(2):
        message = (tmp_path / f"closed-{rank}.txt").read_text()
        assert message.startswith("MicroBatchMemoryError: Step 4 ran out of memory on rank 1"), message
        assert "Set per_device_train_batch_size=2, with batch_size=8" in message
