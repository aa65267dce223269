"""Whether all ranks are to do the same run, found out before they talk of anything else."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

from mixer.distributed.collectives import RankSync
from mixer.utils.nested import flat
from mixer.utils.shortened import shortened

# Training arguments that say where files lie, what is told and by whom, and how samples are loaded: nodes may differ.
_OWN_OF_NODES = (
    *("output_dir", "logging_dir", "local_rank", "disable_tqdm", "report_to", "run_name", "project", "trackio_"),
    *("push_to_hub", "hub_", "log_level", "log_on_each_node", "resume_from_checkpoint", "skip_memory_metrics", "debug"),
    *("dataloader_pin_memory", "dataloader_prefetch_factor", "dataloader_persistent_workers", "ddp_timeout"),
)
_MOST_CHARACTERS = 2_000  # of what a rank says of its differences
_SECRET = ("token", "key", "secret", "password")


def shared_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Leaves out the training arguments that nodes may have of their own.

    Args:
        options: Training arguments by name.

    Returns:
        The others.
    """
    return {name: value for name, value in options.items() if not name.startswith(_OWN_OF_NODES)}


def written(run: Mapping[str, Any]) -> str:
    """Writes down what a rank is to do, in the same way on every rank.

    Args:
        run: Nested mappings; what is no plain data counts by its type.

    Returns:
        JSON.
    """
    return json.dumps(run, sort_keys=True, default=lambda value: type(value).__name__)


def difference(own: str, first: str) -> str:
    """Says in what a rank's run differs from that of the first rank.

    Args:
        own: What `written` gave on this rank.
        first: What it gave on the first.

    Returns:
        Names with both values; empty if there is no difference.
    """
    if own == first:
        return ""
    mine, theirs = flat(json.loads(own)), flat(json.loads(first))
    names = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
    return ", ".join(
        f"{'.'.join(name)} is another"
        if name[-1].endswith(_SECRET)
        else f"{'.'.join(name)} is {shortened(repr(mine.get(name)))} instead of {shortened(repr(theirs.get(name)))}"
        for name in names
    )


def refusal(differences: str) -> str:
    """Says that ranks cannot train together.

    Args:
        differences: What differs, by rank.

    Returns:
        The message.
    """
    return (
        f"The ranks are to do different runs; other than on rank 0: {differences}. Start all ranks, on every node, "
        "with the same recipe, options, code and data."
    )


def check_same(run: Mapping[str, Any], rank_sync: RankSync) -> None:
    """Refuses ranks that are to do different runs; all ranks have to call it.

    Args:
        run: What this rank is to do, as nested mappings.
        rank_sync: Brings the ranks together.

    Raises:
        ValueError: On all ranks, if one of them is to do something else; what differs is named.
    """
    own = written(run).encode()
    # With thousands of streams and ranks the texts themselves would be gigabytes on each rank.
    if len(set(rank_sync.gather_bytes(hashlib.blake2b(own, digest_size=16).digest()))) == 1:
        return
    what = shortened(difference(own.decode(), rank_sync.from_first(own).decode()), _MOST_CHARACTERS)
    others = {rank: text.decode() for rank, text in enumerate(rank_sync.gather_bytes(what.encode()))}
    different = "; ".join(f"on rank {rank} {what}" for rank, what in others.items() if what)
    if different:
        raise ValueError(refusal(different))
