"""Runs over tasks that nobody killed, and runs that were killed within a task and gone on with."""

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.helpers import layouts, weights_of
from tests.mixer.checkpoint.test_resume import Instants, Killed


def whole_runs(build: Callable[..., Any]) -> Any:
    """A fixture of a module: gives runs that nobody killed by their names, each trained once; to be read only."""

    @pytest.fixture(scope="module")
    def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[Any, list[str]]]:
        @cache
        def finished(name: str) -> tuple[Any, list[str]]:
            run = build(tmp_path_factory.mktemp("whole"), name, instants := Instants())
            run.run()
            return run, instants.names

        return finished

    return whole


def assert_goes_on(build: Callable[..., Any], name: str, whole: Any, folder: Path, **changes: Any) -> Any:
    """Kills a run in the third step of its third task, and goes on to the end of the run that nobody killed."""
    expected, instants = whole(name)
    third = [number for number, place in enumerate(instants) if place == "step 3"][2]
    with pytest.raises(Killed):
        build(folder, name, Instants(third)).run()
    run = build(folder, name, **changes)
    run.run(resume=True)
    assert weights_of(run.model).tolist() == weights_of(expected.model).tolist()
    np.testing.assert_array_equal(run.scores.scores, expected.scores.scores)
    assert layouts(run.model) == layouts(expected.model)
    return run


def assert_saved_as_it_is(run: Any, folder: Path) -> None:
    """Saves the methods of a run that is over and loads them: what they have learnt has the layout that it had."""
    for method in run.rehearsal.new_methods():
        before = layouts({**vars(method), **NOT_LEARNT})
        method.save(folder / method.name)
        method.load(folder / method.name)
        assert layouts({**vars(method), **NOT_LEARNT}) == before


# What RanPAC computes of its sums when it is asked, and what CLSER copies into its models when the run goes on.
NOT_LEARNT = {"_weights": None, "_loaded": None}
