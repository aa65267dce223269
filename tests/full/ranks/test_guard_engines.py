"""A step whose gradient is not finite on one rank is skipped by every engine, and no weights are lost."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.integrations.deepspeed import unset_hf_deepspeed_config

from mixer import MixingTrainer
from tests.full.ranks.test_engines import ENGINES, end_of
from tests.helpers import arguments, build_model, mixing_trainer, three_streams
from tests.ranks.engines import as_on_gpus, without_compiling
from tests.ranks.launch import message_of
from tests.ranks.warm import on_ranks

Engines = dict[str, dict[str, Any]]


class _Broken(MixingTrainer):
    """A loss that is finite, with a gradient that is NaN, on one rank in the second step."""

    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
        loss, outputs = super().compute_loss(model, inputs, return_outputs=True, **options)
        is_meant = torch.is_grad_enabled() and self.state.global_step == 1 and self.args.process_index == 1
        zero = (outputs["logits"] * 0.0).square().sum()
        loss = loss + (zero + float(not is_meant)).sqrt() - float(not is_meant)
        return (loss, outputs) if return_outputs else loss


def _trainer(folder: Path, engine: str, **options: Any) -> MixingTrainer:
    unset_hf_deepspeed_config()
    own = {"per_device_train_batch_size": 2, "max_steps": 4, "optim": "adamw_torch", "learning_rate": 1e-2}
    args = arguments(folder / engine, lr_scheduler_type="constant", max_grad_norm=1.0, **own, **ENGINES[engine]())
    data = three_streams()
    return mixing_trainer(_Broken, build_model("llama"), args, train_dataset=data, batch_size=9, **options)


def _skipped(folder: Path, *engines: str) -> Engines:
    found = {}
    for engine in engines:
        trainer = _trainer(folder, engine)
        trainer.train()
        found[engine] = end_of(trainer)
        found[engine]["message"] = message_of(_trainer(folder / "raise", engine, nonfinite="raise").train)
    return found


def by_fsdp(folder: Path) -> Engines:
    plain = _skipped(folder, "ddp")
    with as_on_gpus():
        return {**plain, **_skipped(folder, "fsdp")}


def by_deepspeed(folder: Path) -> Engines:
    without_compiling()
    with as_on_gpus():
        return _skipped(folder, "zero-2", "zero-3")


def test_every_engine_skips_it_or_raises(tmp_path: Path) -> None:
    pytest.importorskip("deepspeed")
    found: Engines = {}
    for function in (by_fsdp, by_deepspeed):
        (folder := tmp_path / function.__name__).mkdir()
        for rank in on_ranks(folder, function):
            found |= rank[function.__name__]
    for engine, one in found.items():
        assert all(torch.isfinite(torch.tensor(value)) for value in one["squares"].values()), engine
        assert one["weights"] == pytest.approx(found["ddp"]["weights"], rel=1e-5, abs=1e-4), engine
        assert one["message"].startswith("NonFiniteLossError: Step 2: the gradient of"), engine
