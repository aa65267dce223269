"""The gradients of streams under SFTTrainer: with a fused head, with adapters, and with a frozen base."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from trl.trainer.utils import add_fused_lm_head

from mixer import Probing
from mixer.gradients.probe import GradientProbe
from tests.helpers import weights_of
from tests.mixer.gradients.probe.reference import Case, assert_equal, assert_same_gradients, expected_of, gradients_of
from tests.mixer.trainer.trl.cases import chats, completions, model_of, sft

OUTPUTS = ("log_probs", "entropy", "log_sum_sq_probs", "mean_logits", "is_top1")


def _fused(name: str, dtype: torch.dtype) -> nn.Module:
    kind, _, change = name.partition("/")
    model = model_of(kind, dtype)
    if change == "tied":
        model.config.tie_word_embeddings = True
        model.tie_weights()
    add_fused_lm_head(model, outputs=OUTPUTS)
    if change.startswith("lora"):
        modules = ["lm_head"] if change == "lora+head" else None
        config = LoraConfig(target_modules=["q_proj", "down_proj"], init_lora_weights=False, modules_to_save=modules)
        model = get_peft_model(model, config).to(dtype)
    if change == "frozen":
        for parameter in model.parameters():
            parameter.requires_grad_(False)
        model.lm_head.weight.requires_grad_(True)
    return model


def _losses(model: Any, batch: dict[str, Tensor]) -> Tensor:
    return -model(**batch, fused_lm_head=True).log_probs.sum(dim=1)


def _case(name: str, dtype: torch.dtype = torch.float64) -> Case:
    generator = torch.Generator().manual_seed(3)
    ids = torch.randint(2, 45, (7, 9), generator=generator)
    lengths = torch.tensor([9, 5, 7, 9, 4, 8, 6])
    mask = (torch.arange(9) < lengths[:, None]).long()
    labels = torch.where(mask.bool(), ids, -100)
    batch = {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}
    return Case(_fused(name, dtype), batch, _losses, lengths - 1, [0, 2, 1, 0, 2, 2, 1])


NAMES = ["llama", "llama/tied", "gpt2", "llama/lora", "llama/lora+head", "llama/frozen"]


@pytest.mark.parametrize("name", NAMES)
def test_a_fused_head_is_read_as_by_separate_backwards(name: str) -> None:
    case = _case(name)
    case.loss().backward()
    plain = gradients_of(case.model)
    expected, probe = expected_of(case), GradientProbe(case.model, 3)
    found = case.probed(probe)
    assert_same_gradients(gradients_of(case.model), plain, 1e-6)  # the fused head adds up in float32
    assert_equal(found, expected, 1e-5)
    assert probe.coverage == 1.0


def _gram_of(model: Any, streams: Any) -> np.ndarray:
    parameters = [one for one in model.parameters() if one.requires_grad]
    gradients = []
    for stream in streams:
        loss, count = torch.zeros((), dtype=torch.float64), 0
        for row in stream.dataset:
            ids, targets = torch.tensor([row["input_ids"]]), torch.tensor(row["labels"])[1:]
            logits = model(input_ids=ids).logits[0, :-1]
            loss = loss + torch.nn.functional.cross_entropy(logits, targets, reduction="sum")
            count += int((targets != -100).sum())
        found = torch.autograd.grad(loss / count, parameters)
        gradients.append(torch.cat([one.flatten() for one in found]).double())
    whole = torch.stack(gradients)
    return (whole @ whole.T).numpy()


def _measured(folder: Path, model: Any, own: dict[str, Any] | None = None, **changes: Any) -> Any:
    own = {"mixing": "PiKE", "batch_size": 12, "probe": Probing(interval_steps=1, mode="exact"), **(own or {})}
    changes = {"per_device_train_batch_size": 64, "max_steps": 1, "learning_rate": 0.0, **changes}
    trainer = sft(folder, {"a": chats(7, 1), "b": completions(5, 2)}, model, own, **changes)
    trainer.mixing.set_weights({"a": 7, "b": 5})
    before = weights_of(trainer.model)
    trainer.train()
    assert torch.equal(before, weights_of(trainer.model))
    assert trainer._parts.probe.statistics is not None
    return trainer, trainer._parts.probe.statistics.gram


@pytest.mark.parametrize("kind", ["llama", "gpt2", "peft_config", "peft_model"])
def test_a_run_measures_what_is_trained(tmp_path: Path, kind: str) -> None:
    lora = LoraConfig(target_modules=["q_proj", "v_proj"], r=2)
    model: Any = model_of("gpt2" if kind == "gpt2" else "llama", torch.float64)
    if kind == "peft_model":
        torch.manual_seed(5)
        model = get_peft_model(model, lora)
    trainer, gram = _measured(tmp_path, model, {"peft_config": lora} if kind == "peft_config" else {})
    np.testing.assert_allclose(gram, _gram_of(trainer.model, trainer.streams), rtol=1e-4, atol=1e-9)
