"""What is said of ranks that are to do different runs."""

from mixer.distributed.consistency import check_same, difference, shared_options, written


class ManyRanks:
    """Ranks that all say what this one says, and how much that was."""

    def __init__(self, world_size: int):
        self.world_size, self.longest = world_size, 0

    def gather_bytes(self, content: bytes) -> list[bytes]:
        self.longest = max(self.longest, len(content))
        return [content] * self.world_size


def test_what_ranks_tell_each_other_of_a_run_does_not_grow_with_it() -> None:
    ranks = ManyRanks(4_096)
    check_same({"streams": {f"stream-{number}": {"position": number} for number in range(10_000)}}, ranks)
    assert 0 < ranks.longest <= 64


def test_what_differs_is_named_with_both_values() -> None:
    first, own = written({"a": {"b": 1, "c": [1, 2]}, "d": 3}), written({"a": {"b": 2, "c": [1, 2]}})
    assert difference(first, first) == ""
    assert difference(own, first) == "a.b is 2 instead of 1, d is None instead of 3"


def test_secrets_are_not_told() -> None:
    for name in ("hf_token", "wandb_api_key", "secret", "password"):
        first, own = (written({"streams": {"arguments": {name: value}}}) for value in ("sesame", "open"))
        assert difference(own, first) == f"streams.arguments.{name} differs"


def test_nodes_may_differ_in_what_changes_no_step() -> None:
    options = {"output_dir": "a", "hub_token": "b", "dataloader_pin_memory": True, "dataloader_prefetch_factor": 4}
    options |= {"ddp_timeout": 60, "log_on_each_node": False}
    shared = {"learning_rate": 0.1, "dataloader_num_workers": 2}
    assert shared_options({**options, **shared}) == shared
