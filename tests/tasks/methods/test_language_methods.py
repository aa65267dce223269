"""Methods for language models: their formulas by hand, and runs that are killed and resumed."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from tasks.methods import Merging, OLoRA, PseudoSamples, SelfDistillation
from tests.helpers import weights_of
from tests.mixer.trainer.checkpointing.test_resume import Instants, Killed
from tests.tasks.methods.language import adapted, llama, run_of

RUNS: dict[str, tuple[Callable[[int], Any], Callable[[], list[Any]], dict[str, Any]]] = {
    "o-lora": (adapted, lambda: [OLoRA(weight=2.0)], {}),
    "adapter": (adapted, list, {"optimizer": "kept"}),
    "average": (adapted, lambda: [Merging()], {}),
    "ties": (llama, lambda: [Merging("ties", start="initial", density=0.5)], {}),
    "self-distillation": (llama, lambda: [SelfDistillation(rate=0.2)], {}),
    "pseudo-samples": (llama, lambda: [PseudoSamples()], {"memory": "by hand", "prompt_length": 0}),
}


def build_named(folder: Path, name: str, instants: Instants | None = None, seed: int = 0, **changes: Any) -> Any:
    model, methods, options = RUNS[name]
    return run_of(folder, model(seed), methods(), instants, **{**options, **changes})


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, list[str]]]:
    """Runs that nobody killed, each trained once; to be read only."""

    @cache
    def finished(name: str) -> tuple[Any, list[str]]:
        run = build_named(tmp_path_factory.mktemp("whole"), name, instants := Instants())
        run.run()
        return run, instants.names

    return finished


@pytest.mark.parametrize("name", RUNS)
def test_a_run_killed_in_a_task_ends_as_one_that_was_not(name: str, whole: Any, tmp_path: Path) -> None:
    expected, instants = whole(name)
    third = [number for number, place in enumerate(instants) if place == "step 3"][2]
    with pytest.raises(Killed):
        build_named(tmp_path, name, Instants(third)).run()
    run = build_named(tmp_path, name, seed=7)
    run.run(resume=True)
    assert weights_of(run.model).tolist() == weights_of(expected.model).tolist()
    assert run.scores.scores.tolist() == expected.scores.scores.tolist()
