"""Rows that a model writes on two ranks."""

from pathlib import Path
from typing import Any

import torch

from mixer.distributed.collectives import RankSync
from replay import self_generated
from tests.ranks.warm import Results, launched
from tests.replay.test_self_generated import TOKENIZER, llama


def rows(_folder: Path) -> Any:
    """More rows than one round gives, so that ranks write several."""
    ranks = RankSync(torch.distributed.get_world_size()) if torch.distributed.is_initialized() else None
    options = {"num_rows": 20, "max_new_tokens": 12, "min_tokens": 3, "batch_size": 3}
    return list(self_generated(llama(), TOKENIZER, ranks, prompts=["one", "two"], **options))


results = launched(rows)


def test_ranks_write_a_part_each_and_have_the_rows_of_one_process(results: Results, tmp_path: Path) -> None:
    assert [result["rows"] for result in results] == [rows(tmp_path)] * 2
