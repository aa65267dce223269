"""What the ranks tell each other in a step, timed on the ranks of one machine: for `benchmarks.scale`.

The bytes are exact for any number of ranks; the time is that of processes on one machine that take turns on its cores,
and says nothing about a network. Run by torchrun: `python -m benchmarks.scale.ranks FILE`.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from benchmarks.launching import launch
from benchmarks.scale.planning import NUM_STREAMS, a_plan
from benchmarks.scale.term import STREAMS, Term, counted
from mixer.distributed.collectives import RankSync
from mixer.loading.step import StepCounts, confirm

_NUM_ROUNDS = 60
_LIMIT_SECONDS = 600.0
_RANKS = (2, 4)


def agreement_bytes(num_streams: int) -> int:
    """Gives what a rank puts into the collective before the forward.

    Args:
        num_streams: Number of streams.

    Returns:
        Bytes: a failure flag, two halves of a hash and their squares, items and tokens a stream, two counts.
    """
    return 8 * (5 + 2 * num_streams + 2)


def statistics_bytes(num_streams: int) -> int:
    """Gives what a rank puts into the collective after the backward: a sum of losses a stream, and one of all.

    Args:
        num_streams: Number of streams.

    Returns:
        Bytes.
    """
    return 4 * (num_streams + 1)


def _seconds(num_streams: int, world_size: int) -> dict[str, float]:
    _, plan = a_plan(num_streams)
    rank_sync = RankSync(world_size)
    contents = StepCounts(plan.counts, plan.counts)
    laps: dict[str, list[float]] = {"confirm": [], "statistics": []}
    for _ in range(_NUM_ROUNDS):
        dist.barrier()
        started = time.perf_counter()
        confirm(rank_sync, num_streams, plan, contents, None)
        laps["confirm"].append(time.perf_counter() - started)
        values = torch.ones(num_streams + 1)
        started = time.perf_counter()
        rank_sync.add_up(values)
        laps["statistics"].append(time.perf_counter() - started)
    return {name: float(np.median(values)) for name, values in laps.items()}


def launched(world_size: int) -> dict[str, dict[str, float]]:
    """Times the collectives on some ranks.

    Args:
        world_size: Number of ranks.

    Returns:
        Seconds by number of streams and collective, of the first rank.
    """
    with tempfile.TemporaryDirectory() as name:
        file = Path(name) / "seconds.json"
        launch(world_size, ["benchmarks.scale.ranks", str(file)], _LIMIT_SECONDS)
        found: dict[str, dict[str, float]] = json.loads(file.read_text())
    return found


def terms() -> list[Term]:
    """Measures all of it.

    Returns:
        The terms.
    """
    found = {world_size: launched(world_size) for world_size in _RANKS}
    timed = [
        counted(
            f"{what}, {world_size} ranks of one machine",
            STREAMS,
            NUM_STREAMS,
            lambda k, key=key, seconds=seconds: seconds[str(k)][key],
            unit="s waited",
        )
        for world_size, seconds in found.items()
        for what, key in (("agreement", "confirm"), ("statistics", "statistics"))
    ]
    return [
        counted("agreement, a rank's message", STREAMS, NUM_STREAMS, agreement_bytes),
        counted("statistics, a rank's message", STREAMS, NUM_STREAMS, statistics_bytes),
        *timed,
    ]


def main(argv: Sequence[str] | None = None) -> None:
    """Times them on this rank and has the first one write the figures.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    args = parser.parse_args(argv)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    found: dict[str, Any] = {str(k): _seconds(k, dist.get_world_size()) for k in NUM_STREAMS}
    if dist.get_rank() == 0:
        args.file.write_text(json.dumps(found))
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
