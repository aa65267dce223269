from pathlib import Path

import pytest

from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm
from tests.ranks.workers.seq2seq_worker import run


@pytest.mark.full
def test_two_ranks_train_and_generate_as_one(tmp_path: Path) -> None:
    launch_warm("seq2seq_worker.py", tmp_path)
    alone = run(tmp_path / "alone", 64)
    both = results_of(tmp_path, "seq2seq")
    for rank in both:
        assert rank["metrics"] == pytest.approx(alone["metrics"], abs=1e-5)
        for mine, single in zip(rank["gradients"], alone["gradients"], strict=True):
            assert mine == pytest.approx(single, abs=1e-6)
    assert both[0]["losses"] == pytest.approx(alone["losses"], abs=1e-5)
