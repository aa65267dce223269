"""A script as users write it with SFTTrainer, and the same with the change to a mixture."""

import json
import runpy
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

History = list[dict[str, float]]

SCRIPT = """
import json, sys
from datasets import concatenate_datasets
from trl import SFTConfig, SFTTrainer
from tests.mixer.trainer.trl.cases import chats, model_of, tokenizer

folder = sys.argv[1]
math, code = chats(24, 1), chats(16, 2)
trainer = SFTTrainer(
    model=model_of(),
    args=SFTConfig(
        folder, num_train_epochs=1, per_device_train_batch_size=4, logging_steps=1, report_to="none", use_cpu=True,
        bf16=False, learning_rate=1e-2, assistant_only_loss=True, save_strategy="epoch", eval_strategy="epoch",
    ),
    train_dataset=concatenate_datasets([math, code]),
    eval_dataset={"math": chats(6, 3), "code": chats(6, 4)},
    processing_class=tokenizer(),
)
trainer.train()
trainer.save_model(folder + "/final")
print("HISTORY" + json.dumps(trainer.state.log_history))
"""

CHANGES = {
    "from trl import SFTConfig, SFTTrainer": "from trl import SFTConfig\nfrom mixer import MixingSFTTrainer",
    "trainer = SFTTrainer(": "trainer = MixingSFTTrainer(",
    "concatenate_datasets([math, code])": '{"math": math, "code": code}',
}


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[[str, Path], History]:
    def as_main(script: str, folder: Path) -> History:
        folder.mkdir()
        path = folder / "train.py"
        path.write_text(script)
        monkeypatch.setattr(sys, "argv", [str(path), str(folder / "out")])
        runpy.run_path(str(path), run_name="__main__")
        history: History = json.loads(capsys.readouterr().out.split("HISTORY")[1])
        return history

    return as_main


@pytest.mark.full
def test_the_change_of_a_line_turns_it_into_a_mixture(run: Callable[[str, Path], History], tmp_path: Path) -> None:
    changed = SCRIPT
    for old, new in CHANGES.items():
        assert old in changed
        changed = changed.replace(old, new)
    before, after = run(SCRIPT, tmp_path / "before"), run(changed, tmp_path / "after")
    # An epoch of the mixture is that of the concatenation, step by step, with the same learning rates.
    for key in ("learning_rate", "epoch"):
        mine, theirs = ([entry[key] for entry in history if "loss" in entry] for history in (after, before))
        assert mine == theirs
    assert len([entry for entry in after if "loss" in entry]) == 10
    trained = [entry for entry in after if "loss" in entry]
    assert sum(entry["count/math"] for entry in trained) == 24
    assert sum(entry["count/code"] for entry in trained) == 16
    # Whatever the order, an epoch over the same samples learns about the same.
    for history in (before, after):
        losses = [entry["loss"] for entry in history if "loss" in entry]
        assert losses[-1] < losses[0]
    for name in ("math", "code"):
        mine, theirs = (
            next(entry[f"eval_{name}_loss"] for entry in history if f"eval_{name}_loss" in entry)
            for history in (after, before)
        )
        assert mine == pytest.approx(theirs, rel=0.05)
    for folder in ("before", "after"):
        assert (tmp_path / folder / "out" / "final" / "model.safetensors").exists()
        assert (tmp_path / folder / "out" / "README.md").exists()  # TRL's card of the model
