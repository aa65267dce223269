"""A model that fails on a micro-batch, on a device that gives nothing back any more."""

from pathlib import Path
from typing import Any

import pytest

from mixer import MixingTrainer
from tests.helpers import Tokens, arguments, build_model


def test_what_is_asked_of_a_broken_device_does_not_hide_the_models_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError("device-side assert triggered")

    model = build_model("gpt2")
    trainer = MixingTrainer(
        model, arguments(tmp_path, max_steps=1), train_dataset={"a": Tokens(8, 1), "b": Tokens(8, 2)}
    )
    monkeypatch.setattr(model, "forward", lambda *_, **__: [][0])
    monkeypatch.setattr("mixer.stream_losses.unfit_rows", fail)
    with pytest.raises(IndexError) as caught:
        trainer.train()
    assert any("stream 'a': samples" in note for note in caught.value.__notes__)
