"""Checks that all ranks do the same run and share its output folder."""

import hashlib
import json
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mixer.distributed.collectives import RankSync
from mixer.utils.errors import wrong_value
from mixer.utils.files import new_file
from mixer.utils.nested import flat
from mixer.utils.text import shortened

# Training arguments on paths, logging and loading: nodes may differ in them.
_OWN_OF_NODES = (
    *("output_dir", "logging_dir", "local_rank", "disable_tqdm", "report_to", "run_name", "project", "trackio_"),
    *("push_to_hub", "hub_", "log_level", "log_on_each_node", "resume_from_checkpoint", "skip_memory_metrics", "debug"),
    *("dataloader_pin_memory", "dataloader_prefetch_factor", "dataloader_persistent_workers", "ddp_timeout"),
)
_MOST_CHARACTERS = 2_000  # of a rank's differences
_SECRET = ("token", "key", "secret", "password")


def check_shared(folder: Path, writes: bool, rank_sync: RankSync, unseen: str, crowded: str = "") -> None:
    """Checks that every rank sees the files of exactly one writing rank; all ranks must call it.

    Args:
        folder: Output folder on this rank.
        writes: Whether this rank writes.
        rank_sync: Collectives.
        unseen: Advice if a rank sees no writer's files.
        crowded: Advice if several ranks, each the first of a node, write to the same folder.

    Raises:
        ValueError: On all ranks, if the check fails.
        RemoteError: If another rank cannot write; that rank raises its own error.
    """
    if rank_sync.world_size == 1:
        return
    mark = folder / f".rank-{secrets.token_hex(8)}"  # a name that is in no cache of a network file system
    try:
        rank_sync.run_on_all(lambda: _put(mark) if writes else None)
        names = rank_sync.gather_bytes(mark.name.encode() if writes else b"")
        seen = [rank for rank, name in enumerate(names) if name and (folder / name.decode()).exists()]
        by_rank = rank_sync.gather(seen)
    finally:
        if writes:
            mark.unlink(missing_ok=True)
    blind = [rank for rank, marks in enumerate(by_rank) if not marks]
    if blind:
        raise wrong_value(
            "folder", f"={folder}: {_ranks(blind)} not see the files of rank 0, on another disk. {unseen}"
        )
    together = max(by_rank, key=len)
    if len(together) > 1:
        raise wrong_value(
            "folder", f"={folder}: ranks {together}, each the first of a node, would write the same. {crowded}"
        )


def share_files(folder: Path, names: Sequence[str], writes: bool, rank_sync: RankSync) -> None:
    """Copies files written by single ranks to every node; all ranks must call it.

    Args:
        folder: Their folder on this rank.
        names: Files that this rank may have written.
        writes: Whether this rank writes the others' files.
        rank_sync: Collectives.
    """
    others: dict[Path, bytes] = {}
    for name in names:
        own = folder / name
        contents = rank_sync.gather_bytes(own.read_bytes() if own.is_file() else b"")
        paths = rank_sync.gather_bytes(name.encode())
        others |= {folder / path.decode(): content for path, content in zip(paths, contents, strict=True)}
        others.pop(own)
    for path, content in others.items() if writes else ():
        if content:
            with new_file(path) as file:
                file.write(content)


def _put(mark: Path) -> None:
    mark.parent.mkdir(parents=True, exist_ok=True)
    new_file(mark).close()


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {ranks[0]} does" if len(ranks) == 1 else f"ranks {list(ranks)} do"


def shared_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the training arguments that must be equal on all nodes."""
    return {name: value for name, value in options.items() if not name.startswith(_OWN_OF_NODES)}


def written(run: Mapping[str, Any]) -> str:
    """Serialises a rank's run as JSON, identically on every rank; other than plain data counts by its type."""
    return json.dumps(run, sort_keys=True, default=lambda value: type(value).__name__)


def difference(own: str, first: str) -> str:
    """Describes how a rank's run differs from the first rank's; empty if it does not.

    Args:
        own: Result of `written` on this rank.
        first: Result of `written` on the first rank.
    """
    if own == first:
        return ""
    mine, theirs = flat(json.loads(own)), flat(json.loads(first))
    names = sorted(name for name in mine.keys() | theirs.keys() if mine.get(name) != theirs.get(name))
    return ", ".join(
        f"{'.'.join(name)} differs"
        if name[-1].endswith(_SECRET)
        else f"{'.'.join(name)} is {shortened(repr(mine.get(name)))} instead of {shortened(repr(theirs.get(name)))}"
        for name in names
    )


def refusal(differences: str) -> str:
    """Returns the error message for `differences` between ranks."""
    return (
        f"The ranks have different runs; differences from rank 0: {differences}. Start all ranks, on every node, "
        "with the same recipe, options, code and data."
    )


def check_same(run: Mapping[str, Any], rank_sync: RankSync) -> None:
    """Refuses ranks with different runs; all ranks must call it.

    Args:
        run: This rank's run, as nested mappings.
        rank_sync: Collectives.

    Raises:
        ValueError: On all ranks, if runs differ; the message names the differences.
    """
    own = written(run).encode()
    # Compare digests: with thousands of streams and ranks the texts would take gigabytes on each rank.
    if len(set(rank_sync.gather_bytes(hashlib.blake2b(own, digest_size=16).digest()))) == 1:
        return
    own_difference = shortened(difference(own.decode(), rank_sync.broadcast(own).decode()), _MOST_CHARACTERS)
    texts = enumerate(rank_sync.gather(own_difference))
    different = "; ".join(f"on rank {rank} {text}" for rank, text in texts if text)
    if different:
        raise ValueError(refusal(different))
