"""Filling a buffer in your own training loop, from the plans of its batches."""

from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any, cast

import torch

from mixer.distributed.collectives import RankSync
from mixer.loading.step import StepBatch
from mixer.mixture.plan import Plan
from mixer.mixture.planner import Planner
from mixer.mixture.stream import Stream
from mixer.trainer.method import RunContext
from mixer.trainer.side_runs import SideRuns
from replay.feeding.feeding import BufferFeeding
from replay.memory.view import BufferView


def follow(
    buffer: BufferView, name: str, streams: Sequence[Stream], planner: Callable[[], Planner]
) -> Callable[[Plan], None]:
    """Returns a function that offers the samples of a batch to a buffer, from the plan alone: no collective is needed.

    Args:
        buffer: The buffer.
        name: Name of its stream.
        streams: The streams, in order.
        planner: Returns the planner of the streams.

    Returns:
        The function; call it with the plan of each batch after training on it.

    Raises:
        ValueError: If the buffer needs samples, losses, or labels without a column.
    """
    feeding = BufferFeeding(buffer, name)
    no_runs: Any = SimpleNamespace()
    run = RunContext(
        streams=streams,
        rank=0,
        world_size=1,
        is_writer=True,
        device=torch.device("cpu"),
        rank_sync=RankSync(1),
        planner=planner,
        runs=cast(SideRuns, no_runs),
    )
    feeding.attach(run)
    if buffer.is_online and (feeding.asks or buffer.storage.keeps_contents):
        what = f"selection={buffer.selection.name} goes by what a batch shows" if feeding.asks else f"{buffer.storage}"
        raise ValueError(
            f"Stream {name!r}: {what}, which is not available in your own training loop. Use a selection that "
            "needs no data, or only a column of labels, with storage='references'; or set is_online=False and call "
            "remember(...)."
        )

    def take_in(plan: Plan) -> None:
        batch = StepBatch(plan, ())
        feeding.begin_step(torch.nn.Identity(), batch)
        feeding.close(batch)

    return take_in
