"""Runs that nobody disturbs, which several files compare with."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.commands.conftest import printed as printed, refused as refused


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[dict[str, Any], list[str]]]:
    """Gives the end of a run of `test_resume.RUNS`, and the instants at which it could have been killed."""
    from tests.mixer.checkpoint.test_resume import Events, build, end_of, watched

    ends: dict[str, tuple[dict[str, Any], list[str]]] = {}

    def run(name: str) -> tuple[dict[str, Any], list[str]]:
        if name not in ends:
            with pytest.MonkeyPatch.context() as patch:
                instants = watched(patch)
                trainer = build(tmp_path_factory.mktemp("whole"), name, [Events(instants)])
                trainer.train()
            ends[name] = end_of(trainer), instants.names
        return ends[name]

    return run
