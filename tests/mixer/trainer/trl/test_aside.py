"""What is computed beside the training under SFTTrainer is what it is without."""

from pathlib import Path
from typing import Any

import pytest
import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from mixer import FAMO, DoReMi, MixingSFTTrainer, MixingTrainer, PiKE
from tests.helpers import arguments, weights_of
from tests.mixer.trainer.trl.cases import chats, model_of, sft_arguments, texts, tokenizer


def _reference() -> Any:
    model = model_of()
    generator = torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator)
    return model


@pytest.mark.parametrize("policy", [FAMO, DoReMi])
def test_losses_aside_are_those_of_the_plain_trainer(tmp_path: Path, policy: Any) -> None:
    options = {"per_device_train_batch_size": 4, "max_steps": 4}
    common = {"batch_size": 9, "reference_model": _reference() if policy is DoReMi else None}
    sft = MixingSFTTrainer(
        model_of(),
        sft_arguments(tmp_path / "sft", **options),
        train_dataset={"a": chats(20, 1), "b": texts(15, 2)},
        processing_class=tokenizer(),
        mixing=policy(),
        **common,
    )
    sft.train()
    if policy is DoReMi:
        common["reference_model"] = _reference()
    plain = MixingTrainer(
        model_of(),
        arguments(tmp_path / "plain", **options, lr_scheduler_type="constant"),
        DataCollatorForLanguageModeling(pad_token_id=0),
        {stream.name: stream.dataset for stream in sft.streams},
        mixing=policy(),
        **common,
    )
    plain.train()
    torch.testing.assert_close(weights_of(sft.model), weights_of(plain.model), rtol=0, atol=1e-6)
    aside = "excess_loss/" if policy is DoReMi else "loss_after/"
    for mine, theirs in zip(sft.state.log_history[:-1], plain.state.log_history[:-1], strict=True):
        names = [name for name in theirs if name.startswith((aside, "loss", "weight/"))]
        assert any(name.startswith(aside) for name in names)
        assert [mine[name] for name in names] == pytest.approx([theirs[name] for name in names], rel=1e-4, abs=1e-6)


def test_a_policy_of_gradients_goes_with_packing(tmp_path: Path) -> None:
    trainer = MixingSFTTrainer(
        model_of(),
        sft_arguments(tmp_path, per_device_train_batch_size=2, max_steps=4, packing=True, max_length=24),
        train_dataset={"a": chats(30, 1), "b": texts(30, 2)},
        processing_class=tokenizer(),
        batch_size=8,
        mixing=PiKE(interval_steps=2),
    )
    trainer.train()
    measured = [entry for entry in trainer.state.log_history if "gradient_cosine/a/b" in entry]
    assert [entry["step"] for entry in measured] == [2, 4]
    assert all(-1.0 <= entry["gradient_cosine/a/b"] <= 1.0 for entry in measured)
