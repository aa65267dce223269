"""DPO and reward trainers on streams; trainers and losses that cannot be mixed are refused."""

from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import Trainer
from trl import (
    DistillationConfig,
    DistillationTrainer,
    DPOConfig,
    GRPOConfig,
    GRPOTrainer,
    KTOConfig,
    KTOTrainer,
    RewardConfig,
    RLOOConfig,
    RLOOTrainer,
)

from mixer import MixingMixin
from mixer.utils.errors import InvalidTypeError
from tests.helpers import GradientRecorder, arguments, build_model, three_streams
from tests.mixer.trainer.trl.cases import (
    MixingDPO,
    MixingRewards,
    model_of,
    pairs,
    reference,
    reward_model,
    tokenizer,
    trl_options,
    two_pairs,
)
from tests.refusals import refused


def _log_probability(model: Any, row: dict[str, Any], completion: str) -> Tensor:
    ids = torch.tensor([*row["prompt_ids"], *row[completion]])
    logits = model(input_ids=ids[None]).logits[0, :-1]
    start = len(row["prompt_ids"]) - 1
    return -F.cross_entropy(logits[start:], ids[start + 1 :], reduction="sum")


def _dpo_loss(model: Any, known: Any, row: dict[str, Any]) -> Tensor:
    ratios = []
    for name in ("chosen_ids", "rejected_ids"):
        with torch.no_grad():
            before = _log_probability(known, row, name)
        ratios.append(_log_probability(model, row, name) - before)
    return -F.logsigmoid(0.1 * (ratios[0] - ratios[1]))


def _expect(trainer: Any, model: Any, loss_of: Any) -> None:
    trainer.mixing.set_batch_size(sum(len(stream.dataset) for stream in trainer.streams))
    recorder = GradientRecorder()
    trainer.add_callback(recorder)
    trainer.train()
    logged = next(entry for entry in trainer.state.log_history if "loss" in entry)
    losses = {stream.name: torch.stack([loss_of(row) for row in stream.dataset]) for stream in trainer.streams}
    for name, own in losses.items():
        assert logged[f"loss/{name}"] == pytest.approx(own.mean().item(), rel=1e-5), name
    whole = torch.cat(list(losses.values())).mean()
    assert logged["loss"] == pytest.approx(whole.item(), rel=1e-5)
    whole.backward()
    expected = [torch.zeros_like(one) if one.grad is None else one.grad for one in model.parameters()]
    whole_gradient = torch.cat([one.flatten() for one in expected])
    torch.testing.assert_close(recorder.gradients[0], whole_gradient, rtol=0, atol=1e-6)


def _args(kind: Any, folder: Path, per_device: int = 3, **changes: Any) -> Any:
    return kind(**trl_options(folder, per_device_train_batch_size=per_device, max_steps=1), **changes)


@pytest.mark.parametrize(("per_device", "precomputed"), [(3, False), (64, True)])
def test_preferences(tmp_path: Path, per_device: int, precomputed: bool) -> None:
    args = _args(DPOConfig, tmp_path, per_device, precompute_ref_log_probs=precomputed)
    data = {"train_dataset": two_pairs(), "eval_dataset": {"a": pairs(3, 8), "b": pairs(3, 9)}}
    model, before = model_of(dtype=torch.float64), reference(torch.float64)
    data |= {"ref_model": reference(torch.float64), "processing_class": tokenizer()}
    trainer = MixingDPO(model_of(dtype=torch.float64), args=args, **data)
    assert ("ref_chosen_logps" in trainer.streams[1].dataset.column_names) == precomputed
    _expect(trainer, model, lambda row: _dpo_loss(model, before, row))
    metrics = trainer.evaluate()
    assert metrics["eval_loss"] == pytest.approx((metrics["eval_a_loss"] + metrics["eval_b_loss"]) / 2)


def test_rewards(tmp_path: Path) -> None:
    model = reward_model().to(torch.float64)

    def loss_of(row: dict[str, Any]) -> Tensor:
        ids = (row["chosen_ids"], row["rejected_ids"])
        chosen, rejected = (model(input_ids=torch.tensor([own])).logits.squeeze() for own in ids)
        return -F.logsigmoid(chosen - rejected) + 0.01 * (chosen + rejected) ** 2

    args, own = _args(RewardConfig, tmp_path, center_rewards_coefficient=0.01), reward_model().to(torch.float64)
    trainer = MixingRewards(own, args=args, train_dataset=two_pairs(), processing_class=tokenizer())
    _expect(trainer, model, loss_of)


_ODD = datasets.Dataset.from_dict({"prompt": ["w1"], "chosen": ["w2"]})


@pytest.mark.parametrize(
    ("loss", "data", "option"),
    [
        *((["sigmoid", loss], two_pairs(), "loss_type") for loss in ("aot", "aot_unpaired", "sft")),
        ("sigmoid", {"a": pairs(4, 1), "odd": _ODD}, "columns"),
    ],
)
def test_preferences_that_do_not_go_are_refused(tmp_path: Path, loss: Any, data: Any, option: str) -> None:
    args = _args(DPOConfig, tmp_path, loss_type=loss)
    with refused(option, stream="odd" if "odd" in data else None):
        MixingDPO(model_of(), ref_model=model_of(), args=args, train_dataset=data, processing_class=tokenizer())


class _Old(Trainer):  # type: ignore[misc]
    def compute_loss(self, model: Any, inputs: Any, return_outputs: bool = False) -> Any:
        return super().compute_loss(model, inputs, return_outputs)


@pytest.mark.parametrize(
    ("parent", "config", "option"),
    [
        (GRPOTrainer, GRPOConfig, "_prepare_dataset"),
        (RLOOTrainer, RLOOConfig, "_prepare_dataset"),
        (DistillationTrainer, DistillationConfig, "_prepare_dataset"),
        (type("Other", (Trainer,), {"__module__": "trl.trainer.other_trainer"}), None, "_prepare_dataset"),
        (_Old, None, "compute_loss"),
    ],
)
def test_trainers_that_cannot_be_mixed_are_refused(parent: type, config: Any, option: str, tmp_path: Path) -> None:
    mixed: Any = type("Mixed", (MixingMixin, parent), {})
    args = arguments(tmp_path) if config is None else config(str(tmp_path), use_cpu=True, bf16=False)
    with refused(option, InvalidTypeError):
        mixed("a model that nobody loads", args, train_dataset=three_streams())


def _answers(num_samples: int) -> datasets.Dataset:
    words = [{"prompt": f"w{row}", "completion": f" w{row + 1}", "label": row % 2 == 0} for row in range(num_samples)]
    return datasets.Dataset.from_list(words)


def test_kto_trains_where_its_loss_needs_no_neighbours(tmp_path: Path) -> None:
    mixed: Any = type("MixingKTO", (MixingMixin, KTOTrainer), {})
    data, options = {"a": _answers(12), "b": _answers(6)}, {"processing_class": tokenizer(), "ref_model": model_of()}
    trainer = mixed(
        model_of(), args=_args(KTOConfig, tmp_path, loss_type="apo_zero_unpaired"), train_dataset=data, **options
    )
    trainer.train()
    assert trainer.ledger.to_pandas()["count"].tolist() == [2, 1]
    with refused("loss_type"):
        mixed(model_of(), args=_args(KTOConfig, tmp_path), train_dataset=data, **options)


def test_arguments_in_the_order_of_another_trainer_are_refused(tmp_path: Path) -> None:
    data, model = three_streams(), build_model("llama")
    with refused("args", InvalidTypeError):
        MixingDPO(model, model, arguments(tmp_path), train_dataset=data)
    with refused("positional arguments", InvalidTypeError):
        MixingDPO(model, arguments(tmp_path), None, data, None)
