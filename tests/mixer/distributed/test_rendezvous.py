"""How ranks tell each other what was wrong before anything is built; threads are the ranks."""

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch.distributed as dist

from mixer.distributed.consistency import check_same, difference, shared_options, written
from mixer.distributed.launch import Rendezvous, meet_ranks


def _on_ranks(does: Callable[[Rendezvous, int], Any], world_size: int = 3, timeout_seconds: float = 20) -> list[str]:
    """What each rank gave, or its error."""
    store = dist.HashStore()
    store.set_timeout(timedelta(seconds=60))

    def one(rank: int) -> str:
        try:
            return str(does(Rendezvous(store, rank, world_size, timeout_seconds), rank))
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    with ThreadPoolExecutor(world_size) as ranks:
        return list(ranks.map(one, range(world_size)))


def test_ranks_of_the_same_run_go_on_and_what_differs_is_named_on_all(monkeypatch: pytest.MonkeyPatch) -> None:
    def does(meeting: Rendezvous, rank: int) -> int:
        meeting.check_same({"training": {"seed": 1}, "order": [rank][:0]})
        return meeting.run_on_all(lambda: rank)

    assert _on_ranks(does) == ["0", "1", "2"]
    ends = _on_ranks(lambda meeting, rank: meeting.check_same({"training": {"seed": rank // 2}, "mixing": "Uniform"}))
    assert len(set(ends)) == 1
    assert "differences from rank 0: on rank 2 training.seed is 1 instead of 0. Start all ranks" in ends[0]
    for name in ("WORLD_SIZE", "SLURM_STEP_NUM_TASKS"):
        monkeypatch.delenv(name, raising=False)
    assert meet_ranks(1.0).run_on_all(lambda: 7) == 7  # one rank meets nobody


@pytest.mark.parametrize("failing", [0, 2])
def test_a_rank_that_cannot_begin_ends_the_others(failing: int) -> None:
    def build(rank: int) -> int:
        if rank == failing:
            raise OSError("no such file")
        return rank

    ends = _on_ranks(lambda meeting, rank: meeting.run_on_all(lambda: build(rank)))
    expected = [f"ValueError: another rank could not start: on rank {failing} OSError: no such file"] * 3
    expected[failing] = "OSError: no such file"
    assert ends == expected


def test_a_rank_of_which_nothing_is_heard_is_named() -> None:
    ends = _on_ranks(lambda all_of, rank: all_of.run_on_all(lambda: time.sleep(1.5 * (rank == 1))), timeout_seconds=0.5)
    assert ends[0] == ends[2]
    assert "could not start: on rank 1 there was no answer within 0.5 seconds" in ends[0]


def test_what_ranks_tell_each_other_of_a_run_does_not_grow_with_it() -> None:
    told: list[bytes] = []
    ranks: Any = SimpleNamespace(world_size=4_096, gather_bytes=lambda own: told.append(own) or [own] * 4_096)
    check_same({"streams": {f"stream-{number}": {"position": number} for number in range(10_000)}}, ranks)
    assert 0 < max(map(len, told)) <= 64


def test_what_differs_is_named_with_both_values_but_for_secrets_and_what_changes_no_step() -> None:
    first, own = written({"a": {"b": 1, "c": [1, 2]}, "d": 3}), written({"a": {"b": 2, "c": [1, 2]}})
    assert difference(first, first) == ""
    assert difference(own, first) == "a.b is 2 instead of 1, d is None instead of 3"
    for name in ("hf_token", "wandb_api_key", "secret", "password"):
        first, own = (written({"streams": {"arguments": {name: value}}}) for value in ("sesame", "open"))
        assert difference(own, first) == f"streams.arguments.{name} differs"
    options = {"output_dir": "a", "hub_token": "b", "dataloader_pin_memory": True, "dataloader_prefetch_factor": 4}
    options |= {"ddp_timeout": 60, "log_on_each_node": False}
    shared = {"learning_rate": 0.1, "dataloader_num_workers": 2}
    assert shared_options({**options, **shared}) == shared
