"""No constructor of a part changes another one, the trainer or a stream; the parts of a step are few."""

import traceback
from pathlib import Path
from typing import Any

import pytest

from mixer import MixingTrainer
from mixer.trainer import parts
from tests.mixer.trainer.runs import make, train


def test_no_constructor_changes_what_is_not_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[Any] = []
    changed: set[str] = set()

    def watch(kind: Any) -> None:
        construct = kind.__init__

        def watched(part: Any, *args: Any, **kwargs: Any) -> None:
            known.extend(one for one in (*args, *kwargs.values()) if hasattr(one, "__dict__") and not callable(one))
            before = [(one, dict(vars(one))) for one in known]
            construct(part, *args, **kwargs)
            for one, was in before:
                names = [name for name in {**was, **vars(one)} if was.get(name, kind) is not vars(one).get(name, kind)]
                changed.update(f"{kind.__name__}: {type(one).__name__}.{name}" for name in names)
            known.append(part)

        monkeypatch.setattr(kind, "__init__", watched)

    kinds = [kind for kind in vars(parts).values() if isinstance(kind, type) and "__init__" in vars(kind)]
    kinds = [kind for kind in kinds if kind.__module__.startswith("mixer.") and kind is not parts.Parts]
    for kind in kinds:
        watch(kind)
    make(tmp_path)
    assert changed == {"StreamSamples: MixingTrainer._signature_columns"}  # which the Trainer keeps for itself
    assert len(known) > len(kinds)


def test_five_frames_lie_between_the_loop_and_the_loss(tmp_path: Path) -> None:
    frames: list[list[str]] = []

    class Mine(MixingTrainer):
        def compute_loss(self, *args: Any, **kwargs: Any) -> Any:
            frames.append([f"{Path(frame.filename).stem}.{frame.name}" for frame in traceback.extract_stack()])
            return super().compute_loss(*args, **kwargs)

    train(tmp_path, kind=Mine, max_steps=1)
    own = frames[0][frames[0].index("trainer.training_step") :]
    assert frames[0][-len(own) - 1] == "trainer._run_epoch"
    assert own == [
        "trainer.training_step",
        "step.train",
        "step._train_micro_batches",
        "micro_batch.train",
        "micro_batch.step",
        "test_parts.compute_loss",
    ]
