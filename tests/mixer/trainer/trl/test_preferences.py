"""DPO, reward and KTO trainers on streams: losses of pairs, and what is no mean over samples is refused."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import LlamaForSequenceClassification
from trl import DPOConfig, KTOConfig, KTOTrainer, RewardConfig

from mixer import MixingMixin
from tests.helpers import GradientRecorder
from tests.mixer.trainer.trl.cases import MixingDPO, MixingRewards, model_of, pairs, tokenizer, trl_options, two_pairs


class _KTO(MixingMixin, KTOTrainer):
    pass


def _unpaired(num_samples: int, seed: int) -> datasets.Dataset:
    rows = [{"prompt": row["prompt"], "completion": row["chosen"]} for row in pairs(num_samples, seed)]
    return datasets.Dataset.from_list([{**row, "label": number % 3 > 0} for number, row in enumerate(rows)])


def _reference() -> Any:
    model = model_of(dtype=torch.float64)
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
    return model


def _log_probability(model: Any, row: dict[str, Any], completion: str) -> Tensor:
    ids = torch.tensor([*row["prompt_ids"], *row[completion]])
    logits = model(input_ids=ids[None]).logits[0, :-1]
    start = len(row["prompt_ids"]) - 1
    return -F.cross_entropy(logits[start:], ids[start + 1 :], reduction="sum")


def _dpo_loss(model: Any, reference: Any, row: dict[str, Any]) -> Tensor:
    ratios = []
    for name in ("chosen_ids", "rejected_ids"):
        with torch.no_grad():
            before = _log_probability(reference, row, name)
        ratios.append(_log_probability(model, row, name) - before)
    return -F.logsigmoid(0.1 * (ratios[0] - ratios[1]))


def _trained(trainer: Any) -> tuple[dict[str, float], Any]:
    """Trains one step of all samples."""
    trainer.mixing.set_batch_size(sum(len(stream.dataset) for stream in trainer.streams))
    recorder = GradientRecorder()
    trainer.add_callback(recorder)
    trainer.train()
    return next(entry for entry in trainer.state.log_history if "loss" in entry), recorder.gradients[0]


def _expect(trainer: Any, model: Any, loss_of: Any, logged: dict[str, float], gradient: Tensor) -> None:
    """Compares a step of all samples with the mean of their losses, and its gradient with that of the mean."""
    losses = {stream.name: torch.stack([loss_of(row) for row in stream.dataset]) for stream in trainer.streams}
    for name, own in losses.items():
        assert logged[f"loss/{name}"] == pytest.approx(own.mean().item(), rel=1e-5), name
    whole = torch.cat(list(losses.values())).mean()
    assert logged["loss"] == pytest.approx(whole.item(), rel=1e-5)
    whole.backward()
    expected = [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]
    torch.testing.assert_close(gradient, torch.cat([one.flatten() for one in expected]), rtol=0, atol=1e-6)


@pytest.mark.parametrize("precomputed", [False, True])
@pytest.mark.parametrize("per_device", [3, 64])
def test_preferences(tmp_path: Path, per_device: int, precomputed: bool) -> None:
    args = DPOConfig(
        **trl_options(tmp_path, per_device_train_batch_size=per_device, max_steps=1),
        precompute_ref_log_probs=precomputed,
    )
    trainer = MixingDPO(
        model_of(dtype=torch.float64),
        ref_model=_reference(),
        args=args,
        train_dataset=two_pairs(),
        eval_dataset={"a": pairs(3, 8), "b": pairs(3, 9)},
        processing_class=tokenizer(),
    )
    assert ("ref_chosen_logps" in trainer.streams[1].dataset.column_names) == precomputed
    logged, gradient = _trained(trainer)
    model, reference = model_of(dtype=torch.float64), _reference()
    _expect(trainer, model, lambda row: _dpo_loss(model, reference, row), logged, gradient)
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] == pytest.approx((metrics["eval_a_loss"] + metrics["eval_b_loss"]) / 2)


def test_rewards(tmp_path: Path) -> None:
    config = model_of().config
    config.num_labels = 1

    def build() -> Any:
        torch.manual_seed(0)
        return LlamaForSequenceClassification(config).to(torch.float64)

    model, names = build(), ("chosen_ids", "rejected_ids")

    def loss_of(row: dict[str, Any]) -> Tensor:
        rewards = [model(input_ids=torch.tensor([row[name]])).logits.squeeze() for name in names]
        return -F.logsigmoid(rewards[0] - rewards[1]) + 0.01 * (rewards[0] + rewards[1]) ** 2

    args = RewardConfig(
        **trl_options(tmp_path, per_device_train_batch_size=3, max_steps=1), center_rewards_coefficient=0.01
    )
    trainer = MixingRewards(build(), args=args, train_dataset=two_pairs(), processing_class=tokenizer())
    logged, gradient = _trained(trainer)
    _expect(trainer, model, loss_of, logged, gradient)


def test_unpaired_preferences(tmp_path: Path) -> None:
    args = KTOConfig(**trl_options(tmp_path, per_device_train_batch_size=3, max_steps=1), loss_type="apo_zero_unpaired")
    data = {"a": _unpaired(7, 1), "b": _unpaired(4, 2)}
    trainer = _KTO(
        model_of(dtype=torch.float64),
        ref_model=_reference(),
        args=args,
        train_dataset=data,
        processing_class=tokenizer(),
    )
    logged, gradient = _trained(trainer)
    model, reference = model_of(dtype=torch.float64), _reference()

    def loss_of(row: dict[str, Any]) -> Tensor:
        with torch.no_grad():
            before = _log_probability(reference, row, "completion_ids")
        ratio = torch.sigmoid(0.1 * (_log_probability(model, row, "completion_ids") - before))
        return 1 - ratio if row["label"] else ratio

    _expect(trainer, model, loss_of, logged, gradient)


def test_a_loss_of_neighbours_is_refused(tmp_path: Path) -> None:
    args = KTOConfig(**trl_options(tmp_path), train_sampling_strategy="sequential")
    with pytest.raises(ValueError, match=r"compares each sample with a mean over its micro-batch.*apo_zero_unpaired"):
        _KTO(
            model_of(),
            ref_model=model_of(),
            args=args,
            train_dataset={"a": _unpaired(7, 1), "b": _unpaired(4, 2)},
            processing_class=tokenizer(),
        )


@pytest.mark.parametrize("loss", ["aot", "aot_unpaired", "sft"])
def test_losses_of_a_micro_batch_are_refused(tmp_path: Path, loss: str) -> None:
    args = DPOConfig(**trl_options(tmp_path), loss_type=["sigmoid", loss])
    with pytest.raises(ValueError, match=f"loss_type '{loss}' .* micro-batch.*such as 'sigmoid'"):
        MixingDPO(
            model_of(),
            ref_model=model_of(),
            args=args,
            train_dataset=two_pairs(),
            processing_class=tokenizer(),
        )


def test_a_stream_that_is_no_preferences_is_named(tmp_path: Path) -> None:
    odd = datasets.Dataset.from_dict({"prompt": ["w1"], "chosen": ["w2"]})
    with pytest.raises(ValueError, match=r"Stream 'odd': MixingDPO cannot prepare the columns \['chosen', 'prompt'\]"):
        MixingDPO(
            model_of(),
            ref_model=model_of(),
            args=DPOConfig(**trl_options(tmp_path)),
            train_dataset={"a": pairs(4, 1), "odd": odd},
            processing_class=tokenizer(),
        )
