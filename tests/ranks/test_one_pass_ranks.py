from pathlib import Path

import pytest

from tests.ranks.launch import results_of
from tests.ranks.warm import launch_warm


@pytest.mark.full
def test_a_step_in_parts_is_refused_on_all_ranks(tmp_path: Path) -> None:
    launch_warm("one_pass_worker.py", tmp_path)
    for errors in results_of(tmp_path, "one_pass"):
        assert "Step 1, the first of this run, has 3 micro-batches, but ddp_static_graph=True" in errors["static"]
        assert "Step 1 has 3 micro-batches, and optim='lomo' would update the weights once" in errors["lomo"]
        assert errors["one micro-batch"] == "no error"
