"""Checkpoints of the plain Trainer: there is no mixture to resume, but there are weights to begin with."""

from pathlib import Path

import pytest
from transformers import Trainer

from tests.helpers import Tokens, arguments, build_model
from tests.mixer.trainer.runs import make


@pytest.mark.parametrize("by_name", [True, False])
def test_its_weights_are_offered(tmp_path: Path, by_name: bool) -> None:
    saves = {"max_steps": 1, "save_strategy": "steps", "save_steps": 1}
    Trainer(build_model("llama"), arguments(tmp_path, **saves), train_dataset=Tokens(8, 1)).train()
    checkpoint = tmp_path / "checkpoint-1"
    with pytest.raises(ValueError, match=rf"another trainer.* weights in {checkpoint}, load them"):
        make(tmp_path, **saves).train(resume_from_checkpoint=str(checkpoint) if by_name else True)
