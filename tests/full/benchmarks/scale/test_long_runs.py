import gc
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from benchmarks.scale.long_planned import LongPlannedRun
from benchmarks.scale.long_trained import Watching, build
from benchmarks.scale.process_state import ProcessState, broken_bounds, growth
from mixer import MixingTrainer


@pytest.fixture(autouse=True)
def thaw() -> Iterator[None]:
    yield
    gc.unfreeze()


def states(**series: list[float]) -> list[dict[str, float]]:
    length = len(next(iter(series.values())))
    names = [name for name in ProcessState.__annotations__ if name not in series]
    return [{**dict.fromkeys(names, 100.0), **{name: own[k] for name, own in series.items()}} for k in range(length)]


class TestBounds:
    def test_what_grows_in_the_warm_up_alone_is_flat(self) -> None:
        found = growth(states(anonymous_mib=[10.0, 50.0, *[100.0] * 8], files=[1.0, 9.0, *[5.0, 6.0] * 4]), [1.0] * 10)
        assert broken_bounds(found, "run") == []

    def test_memory_may_grow_by_a_hundredth_and_files_by_nothing(self) -> None:
        slow, fast = np.linspace(100.0, 100.9, 20).tolist(), np.linspace(100.0, 104.0, 20).tolist()
        assert broken_bounds(growth(states(anonymous_mib=slow), [1.0] * 8), "run") == []
        (broken,) = broken_bounds(growth(states(anonymous_mib=fast), [1.0] * 8), "run")
        assert broken.startswith("run: anonymous_mib grew by ")
        (broken,) = broken_bounds(growth(states(files=[*[5.0] * 19, 6.0]), [1.0] * 8), "run")
        assert broken == "run: files grew from 5 to 6"

    def test_times_are_compared_with_the_second_quarter(self) -> None:
        assert growth(states(files=[1.0] * 8), [9.0, 9.0, 2.0, 2.0, 5.0, 5.0, 3.0, 3.0])["seconds"]["ratio"] == 1.5


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
    trainer = build(tmp_path, 100, 0, "PiKE")
    watching = Flushed(trainer)
    trainer.add_callback(watching)
    trainer.train()
    objects = [state.objects - number for number, state in enumerate(watching.states)]  # but for these samples
    # Log entries are dicts of numbers, which the collector does not follow. What is left is flat to one or two objects:
    # one of each step would be 50 more, one of each checkpoint 10, and each evaluation's loaders were 80.
    assert max(objects[-3:]) - max(objects[2:5]) < 10, objects
    assert max(state.files for state in watching.states[5:]) <= max(state.files for state in watching.states[:5])
