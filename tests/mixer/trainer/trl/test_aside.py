"""What is computed beside the training under SFTTrainer is what it is without."""

from pathlib import Path
from typing import Any

import pytest
import torch
from trl.trainer.sft_trainer import DataCollatorForLanguageModeling

from mixer import FAMO, DoReMi, MixingTrainer, PiKE
from tests.helpers import arguments, weights_of
from tests.mixer.trainer.trl.cases import chats, model_of, reference, sft, texts


@pytest.mark.parametrize("policy", [FAMO, DoReMi])
def test_losses_aside_are_those_of_the_plain_trainer(tmp_path: Path, policy: Any) -> None:
    def own() -> dict[str, Any]:
        needed = reference() if policy is DoReMi else None
        return {"batch_size": 9, "mixing": policy(), "reference_model": needed}

    options: dict[str, Any] = {"per_device_train_batch_size": 4, "max_steps": 3, "lr_scheduler_type": "constant"}
    ours = sft(tmp_path / "sft", {"a": chats(20, 1), "b": texts(15, 2)}, "llama", own(), **options)
    ours.train()
    data = {stream.name: stream.dataset for stream in ours.streams}
    collator = DataCollatorForLanguageModeling(pad_token_id=0)
    plain = MixingTrainer(model_of(), arguments(tmp_path / "plain", **options), collator, data, **own())
    plain.train()
    torch.testing.assert_close(weights_of(ours.model), weights_of(plain.model), rtol=0, atol=1e-6)
    aside = "excess_loss/" if policy is DoReMi else "loss_after/"
    for mine, theirs in zip(ours.state.log_history[:-1], plain.state.log_history[:-1], strict=True):
        names = [name for name in theirs if name.startswith((aside, "loss", "weight/"))]
        assert any(name.startswith(aside) for name in names)
        assert [mine[name] for name in names] == pytest.approx([theirs[name] for name in names], rel=1e-4, abs=1e-6)


def test_a_policy_of_gradients_goes_with_packing(tmp_path: Path) -> None:
    own = {"batch_size": 8, "mixing": PiKE(interval_steps=2)}
    options: dict[str, Any] = {"per_device_train_batch_size": 2, "max_steps": 4, "packing": True, "max_length": 24}
    trainer = sft(tmp_path, {"a": chats(30, 1), "b": texts(30, 2)}, "llama", own, **options)
    trainer.train()
    measured = [entry for entry in trainer.state.log_history if "gradient_cosine/a/b" in entry]
    assert [entry["step"] for entry in measured] == [2, 4]
    assert all(-1.0 <= entry["gradient_cosine/a/b"] <= 1.0 for entry in measured)
