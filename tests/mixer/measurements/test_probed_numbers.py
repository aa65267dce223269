"""What a trainer's probe finds is what a backward for each sample finds, however the step is cut."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from transformers import DataCollatorWithFlattening

from mixer import BalancedPiKE, PiKE, Probing, schedules
from tests.helpers import build_model, three_streams
from tests.mixer.probed import BIG, assert_found, build, is_untouched, loss_of, train

SKETCH = Probing(interval_steps=1, sketch_size=BIG)
HELD = Probing(interval_steps=1, mode="exact", exact_accumulate=True)
EXACT = Probing(interval_steps=1, mode="exact")
ROWS = three_streams("sequence-classification")


def unlike_cross_entropy(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    losses = nn.functional.cross_entropy(outputs.logits[:, :-1].mT, labels[:, 1:], reduction="none")
    return losses.sum() / num_items_in_batch


class Opaque(nn.Module):
    """A model that gives its loss and nothing to tell its rows apart by."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = build_model("bert-classifier")

    def forward(self, input_ids: Tensor, attention_mask: Tensor, labels: Tensor) -> Any:
        return {"loss": self.inner(input_ids=input_ids, attention_mask=attention_mask, labels=labels).loss}


def opaque_loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    result: Tensor = model(**inputs)["loss"] * len(inputs["labels"])
    return result


def micro(size: int, **args: Any) -> dict[str, Any]:
    return {"per_device_train_batch_size": size, **args}


CASES: dict[str, dict[str, Any]] = {
    "one micro-batch": {},
    "one micro-batch, sketched": {"probe": Probing(interval_steps=1, mode="sketch", sketch_size=BIG)},
    "exact": {"probe": EXACT, "batch_size": 16},
    "exact by the schedule": {"probe": EXACT, "batch_size": schedules.NoiseScale(initial=12, maximum=16)},
    "a mean over rows": {"model": "bert-classifier"},
    "unequal micro-batches": {"probe": SKETCH, "args": micro(5)},
    "unequal micro-batches, held": {"probe": HELD, "args": micro(5)},
    "unequal micro-batches of a mean over rows": {"model": "llama-classifier", "probe": SKETCH, "args": micro(5)},
    "gpt2": {"model": "gpt2", "probe": HELD, "args": micro(7)},
    "a mean over tokens": {"model": "bert-tokens", "probe": HELD, "args": micro(5)},
    "by length": {"probe": SKETCH, "args": micro(4, train_sampling_strategy="group_by_length")},
    "by tokens": {"probe": SKETCH, "max_tokens_per_micro_batch": 60},
    "own loss": {"compute_loss_func": unlike_cross_entropy, "probe": HELD, "args": micro(5)},
    "checkpointing": {"probe": HELD, "args": micro(5, gradient_checkpointing=True)},
    "weighed losses": {"probe": SKETCH, "mixing": BalancedPiKE(uses_loss_weights=True, interval_steps=1)},
    "half precision": {"args": {"bf16": True}},
    "losses scaled against underflow": {"probe": HELD, "args": micro(5)},
    "clipped": {"args": {"max_grad_norm": 1e-3}},
    "a stream without samples": {"mixing": [1, 0, 1]},
    "one sample a stream": {"batch_size": 3},
    "one stream": {"train_dataset": {"a": three_streams()["a"]}, "mixing": None},
    "smoothed": {"probe": HELD, "args": micro(5, label_smoothing_factor=0.2)},
    "smoothed rows": {"model": "bert-classifier", "probe": HELD, "args": micro(5, label_smoothing_factor=0.2)},
}


# Each differs from a quicker one in the model, or in what else is set.
RARER = {"one micro-batch, sketched", "exact by the schedule", "gpt2", "by length", "checkpointing", "smoothed rows"}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.full) if name in RARER else name for name in CASES]
)
def test_they_are_those_of_a_backward_for_each_sample(name: str, tmp_path: Path) -> None:
    is_half = name == "half precision"

    def loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_half):
            return loss_of(model, inputs, 0.2 if name.startswith("smoothed") else 0.0)

    changes = {**CASES[name], "args": {"max_steps": 2, **CASES[name].get("args", {})}}
    trainer = build(tmp_path, **changes)
    if "underflow" in name:
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    run = train(trainer, loss)
    frame = run.trainer.ledger.gradients()
    assert frame["step"].unique().tolist() == [1, 2]
    assert_found(frame, run.expected, 0.03 if is_half else 1e-4)
    assert is_half or is_untouched(run.trainer.model)  # accelerate replaces its forward, too


def test_a_loss_that_is_not_finite_is_no_measurement(tmp_path: Path) -> None:
    def spoil(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        return output * float("nan") if trainer.state.global_step == 1 else output

    trainer = build(tmp_path, mixing=PiKE(1), nonfinite="skip")
    trainer.model.lm_head.register_forward_hook(spoil)
    trainer.train()
    frame = trainer.ledger.gradients().set_index("step")
    assert frame.loc[2, "squared_norm"].isna().all()
    assert frame.loc[[1, 3], "squared_norm"].notna().all()
    assert np.isfinite(list(trainer.mixing.weights.values())).all()


@pytest.mark.parametrize("per_device", [16, 2])
def test_homogeneous_micro_batches(per_device: int, tmp_path: Path) -> None:
    probe = Probing(interval_steps=1, homogeneous=True, sketch_size=BIG)
    run = train(build(tmp_path, probe=probe, args=micro(per_device)), is_by_micro_batch=True)
    frame = run.trainer.ledger.gradients()
    assert_found(frame, run.expected)
    assert frame["variance"].isna().all() == (per_device == 16)
    assert is_untouched(run.trainer.model)


def test_a_model_whose_rows_cannot_be_told_apart(tmp_path: Path) -> None:
    trainer = build(tmp_path, model=Opaque(), train_dataset=ROWS, mixing=PiKE(1), probe=SKETCH, args=micro(2))
    run = train(trainer, opaque_loss)
    assert_found(trainer.ledger.gradients(), run.expected)
    assert trainer.ledger.gradients()["variance"].notna().all()
    assert np.ptp(list(trainer.mixing.weights.values())) > 1e-6


def test_packed_rows(tmp_path: Path) -> None:
    def loss(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
        result: Tensor = model(**inputs, num_items_in_batch=torch.tensor(1)).loss
        return result

    ragged = {name: [{"input_ids": list(range(2, 5 + (i + k) % 4))} for i in range(9)] for k, name in enumerate("abc")}
    options = {"data_collator": DataCollatorWithFlattening(), "train_dataset": ragged, "probe": SKETCH}
    run = train(build(tmp_path, args=micro(2), **options), loss, True)
    assert_found(run.trainer.ledger.gradients(), run.expected)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"probe": Probing(homogeneous=True)}, "a stream needs two of them in a step; lower per_device_train_batch"),
        ({"batch_size": 3}, "a stream needs two samples in a step; raise the batch size"),
    ],
)
def test_who_needs_a_variance_that_a_step_does_not_show_is_told_once(changes, message, tmp_path, caplog) -> None:
    build(tmp_path, **{"probe": SKETCH, "mixing": PiKE(1), **changes}).train()
    assert caplog.text.count("The gradient variance of these streams is unknown: a, b and c.") == 1
    assert message in caplog.text
