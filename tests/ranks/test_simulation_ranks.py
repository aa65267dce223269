"""What is simulated for two ranks, on one, is what two ranks train."""

from pathlib import Path

import pytest

from tests.mixer.tools.analysis.simulate.ranked import CASES
from tests.mixer.tools.analysis.simulate.runs import assert_same, plan, train
from tests.ranks.warm import Results, launched


def runs(folder: Path) -> None:
    for name, fields in CASES.items():
        train(folder / name, **fields)


results = launched(runs)


@pytest.mark.full
@pytest.mark.parametrize("case", CASES)
def test_it_is_the_run_of_two_ranks(results: Results, tmp_path: Path, case: str) -> None:
    found = plan(tmp_path / "other", num_ranks=2, **CASES[case])
    assert_same(results[0]["folder"] / case, found)
    assert found.num_ranks == 2
