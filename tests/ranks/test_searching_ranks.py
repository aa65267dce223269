from pathlib import Path

import pandas as pd
import pytest

from mixer import Ledger
from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm
from tests.ranks.workers.searching_worker import TRIALS


@pytest.mark.full
def test_two_ranks_search_as_new_trainers_would_train(tmp_path: Path) -> None:
    launch_warm("searching_worker.py", tmp_path)
    main, other = results_of(tmp_path, "searching")
    losses = []
    for number in range(len(TRIALS)):
        trial = Ledger(tmp_path / "search" / f"run-{number}" / "ledger")
        fresh = Ledger(tmp_path / f"fresh-{number}" / "ledger")
        pd.testing.assert_frame_equal(trial.to_pandas(), fresh.to_pandas())
        losses.append(trial.evaluations().query("stream == 'math'")["loss"].iloc[-1])
    assert main["best"] == [str(losses.index(min(losses))), pytest.approx(min(losses))]
    assert other["best"] is None
    assert [main["pruned"], other["pruned"]] == ["1", None]
    whole, pruned = (Ledger(tmp_path / "pruned" / f"run-{number}" / "ledger") for number in (1, 0))
    assert pruned.clock()["step"].tolist() == [1, 2, 3]
    pd.testing.assert_frame_equal(whole.to_pandas(), Ledger(tmp_path / "fresh-1" / "ledger").to_pandas())
    assert "average_tokens_across_devices=False weights" in main["refused"]
    assert main["refused"] == other["refused"]
