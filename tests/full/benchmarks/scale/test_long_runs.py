import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from benchmarks.scale.long_planned import LongPlannedRun
from benchmarks.scale.long_trained import Watching, build
from mixer import MixingTrainer


@pytest.fixture(autouse=True)
def thaw() -> Iterator[None]:
    yield
    gc.unfreeze()


def test_a_planned_run_resumed_nine_times_leaves_an_exact_ledger_and_no_objects_behind(tmp_path: Path) -> None:
    found = LongPlannedRun(tmp_path, 600, num_samples=20).run()
    assert found["ledger"]["is_exact"]
    assert found["num_resumes"] == 9
    objects = [state["objects"] for state in found["states"]]
    assert max(objects[-5:]) < max(objects[4:9]) + 200  # a thing a step would be 300 more
    assert json.loads(json.dumps(found)) == found


class Flushed(Watching):
    """Looks on when no rows wait in memory, of which there may be two seconds' worth."""

    def __init__(self, trainer: MixingTrainer) -> None:
        super().__init__(interval_steps=10)
        self._trainer = trainer

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._trainer.ledger.flush()
        super().on_step_end(args, state, control, **kwargs)


def test_training_leaves_no_objects_behind(tmp_path: Path) -> None:
    trainer = build(tmp_path, 100, 0)
    watching = Flushed(trainer)
    trainer.add_callback(watching)
    trainer.train()
    objects = [state.objects - number for number, state in enumerate(watching.states)]  # but for these samples
    # Log entries are dicts of numbers, which the collector does not follow. What is left is flat to one or two objects:
    # one of each step would be 50 more, one of each checkpoint 10, and each evaluation's loaders were 80.
    assert max(objects[-3:]) - max(objects[2:5]) < 10, objects
    assert max(state.files for state in watching.states[5:]) <= max(state.files for state in watching.states[:5])
