"""Losses by stream where Liger's losses leave no logits in training."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
import transformers.trainer
from torch import nn
from transformers import LlamaForCausalLM

from mixer import MixingTrainer
from tests.helpers import arguments, build_model, three_streams, weights_of

ROOT = Path(__file__).parents[4]
LOSSES = ("fused_linear_cross_entropy", "cross_entropy")


def _train(folder: Path, model: nn.Module, **options: Any) -> MixingTrainer:
    trainer = MixingTrainer(model, arguments(folder, **options), train_dataset=three_streams(), batch_size=16)
    trainer.train()
    return trainer


# Their forwards name no inputs, by which unused columns would be found.
ALL_COLUMNS = {"remove_unused_columns": False, "label_names": ["labels"]}


class _FusedForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """Shows no logits in training, and in evaluation it does, as Liger's fused loss."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        if self.training:
            output.logits = None
        return output


class _InPlaceForCausalLM(LlamaForCausalLM):  # type: ignore[misc]
    """Leaves something else than logits where they were, as Liger's other loss."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        if output.logits.requires_grad:
            output.logits = torch.zeros_like(output.logits)
        return output


def _uncounted(*, logits: Any, labels: Any, vocab_size: int, num_items_in_batch: Any = None, **_: Any) -> Any:
    """The loss of a causal model, by a path that no tracker sees: as a kernel's."""
    scores, wanted = logits[:, :-1].reshape(-1, vocab_size).log_softmax(-1), labels[:, 1:].reshape(-1)
    total = -scores[torch.arange(len(wanted)), wanted.clamp(min=0)][wanted.ne(-100)].sum()
    return total / (wanted.ne(-100).sum() if num_items_in_batch is None else num_items_in_batch)


@pytest.mark.parametrize(
    ("kind", "config"),
    [(_FusedForCausalLM, None), (_InPlaceForCausalLM, {"cross_entropy": True, "fused_linear_cross_entropy": False})],
)
def test_a_loss_that_leaves_no_logits_is_the_streams_own(
    kind: type, config: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transformers.trainer, "apply_liger_kernel", lambda model, config: None)
    plain = build_model("llama")
    model = kind(plain.config)
    model.load_state_dict(plain.state_dict())
    model.loss_function = _uncounted
    ours = _train(tmp_path / "liger", model, use_liger_kernel=True, liger_kernel_config=config, **ALL_COLUMNS)
    # Without those losses, rows are told apart.
    others = {"use_liger_kernel": True, "liger_kernel_config": {"fused_linear_cross_entropy": False}}
    usual = _train(tmp_path / "usual", plain, **others)
    assert [trainer._parts.run.present_loader.by_stream for trainer in (ours, usual)] == [True, False]
    mine, theirs = ours.ledger.to_pandas(), usual.ledger.to_pandas()
    assert mine["loss"].to_numpy() == pytest.approx(theirs["loss"].to_numpy(), abs=1e-5)
    torch.testing.assert_close(weights_of(ours.model), weights_of(usual.model), rtol=0, atol=1e-6)


def train_with_liger(folder: Path) -> None:
    """For a process of its own, in which its kernels are interpreted on the CPU."""
    for loss in LOSSES:
        # The norm cannot be run by the interpreter; the others are left out to be compared without them.
        config = {"rms_norm": False, "rope": False, "swiglu": False, **{name: name == loss for name in LOSSES}}
        trainer = _train(folder / loss, build_model("llama"), use_liger_kernel=True, liger_kernel_config=config)
        trainer.ledger.to_pandas().to_json(folder / f"{loss}.json", orient="records")


@pytest.mark.full
@pytest.mark.skipif(importlib.util.find_spec("liger_kernel") is None, reason="liger-kernel is not installed")
def test_its_own_losses_are_the_streams_too(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": str(ROOT)}
    code = f"import pathlib; from {__name__} import train_with_liger as train; train(pathlib.Path({str(tmp_path)!r}))"
    command = [sys.executable, "-c", code]
    run = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert run.returncode == 0, run.stderr[-3000:]
    usual = _train(tmp_path / "usual", build_model("llama")).ledger.to_pandas()
    for loss in LOSSES:
        mine = pd.read_json(tmp_path / f"{loss}.json")
        assert mine["loss"].to_numpy() == pytest.approx(usual["loss"].to_numpy(), abs=1e-4)
