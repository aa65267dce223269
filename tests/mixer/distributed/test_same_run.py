"""What is said of ranks that are to do different runs."""

from types import SimpleNamespace
from typing import Any

from mixer.distributed.consistency import check_same, difference, shared_options, written


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
