"""Runs that go on with what makes their gradient, or are told that it is another one."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from mixer import GradientAggregation, MixingTrainer
from mixer.checkpoint.checkpoint_files import METHODS_ENTRY, STATE_FILE, complete
from tests.mixer.aggregated import Watch, make_trainer
from tests.refusals import refused

torchjd = pytest.importorskip("torchjd.aggregation")


def cut(folder: Path, conflict: Any, **changes: Any) -> Path:
    make_trainer(folder / "cut", conflict, max_steps=3, save_strategy="steps", save_steps=3, **changes).train()
    return folder / "cut" / "checkpoint-3"


def resume(folder: Path, conflict: Any, allow_inexact: bool = False, **changes: Any) -> MixingTrainer:
    trainer = make_trainer(folder / "resumed", conflict, max_steps=6, allow_inexact=allow_inexact, **changes)
    trainer.train(resume_from_checkpoint=str(folder / "cut" / "checkpoint-3"))
    return trainer


@pytest.mark.parametrize(
    ("before", "after", "was", "is_now"),
    [
        ("pcgrad", "mgda", r"conflict=PCGrad\(\)", r"conflict=MGDA\(epsilon=0.001, max_iters=100\)"),
        ("pcgrad", None, r"conflict=PCGrad\(\)", "nothing"),
        (None, "pcgrad", "nothing", r"conflict=PCGrad\(\)"),
        ("cagrad", torchjd.CAGrad(c=0.2), r"conflict=CAGrad\(c=0.4", r"conflict=CAGrad\(c=0.2"),
    ],
)
def test_another_is_refused_with_the_difference(before: Any, after: Any, was: str, is_now: str, tmp_path: Path) -> None:
    cut(tmp_path, before)
    with refused("allow_inexact") as caught:
        resume(tmp_path, after)
    assert re.search(rf"gradient were {was}.* and are {is_now}", str(caught.value))
    if "MGDA" not in is_now:
        assert resume(tmp_path, after, allow_inexact=True).state.global_step == 6


def test_the_same_one_given_otherwise_and_a_checkpoint_that_does_not_say_are_taken(tmp_path: Path) -> None:
    checkpoint = cut(tmp_path, "upgrad")
    state = json.loads((checkpoint / STATE_FILE).read_text())
    assert state[METHODS_ENTRY][0].startswith("conflict=UPGrad(")
    for conflict in (torchjd.UPGrad(), GradientAggregation(torchjd.UPGrad())):
        assert resume(tmp_path, conflict, methods=[Watch()]).state.global_step == 6  # watching is free
    del state[METHODS_ENTRY]
    (checkpoint / STATE_FILE).write_text(json.dumps(state))
    complete(checkpoint)
    assert resume(tmp_path, "mgda").state.global_step == 6
