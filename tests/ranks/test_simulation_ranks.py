"""What is simulated for two ranks, on one, is what two ranks train."""

from pathlib import Path

import pytest

from tests.mixer.analysis.simulate.ranked import CASES
from tests.mixer.analysis.simulate.runs import assert_same, plan
from tests.ranks.warm import launch_warm


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("simulation")
    launch_warm("simulation_worker.py", path)
    return path


@pytest.mark.parametrize("case", CASES)
def test_it_is_the_run_of_two_ranks(folder: Path, tmp_path: Path, case: str) -> None:
    found = plan(tmp_path / "other", tmp_path / "simulated", num_ranks=2, **CASES[case])
    assert_same(folder / case, tmp_path / "simulated")
    assert found.num_ranks == 2
