"""Work that leaves files for others: the first process of each machine does it before the others."""

from collections.abc import Callable
from typing import Any, TypeVar

from transformers import TrainingArguments

from mixer.distributed.collectives import RankSync, RemoteError

Result = TypeVar("Result")


def in_turns(training: TrainingArguments, work: Callable[[], Result]) -> Result:
    """Does work on the first process of each machine, then on the others; all have to call it.

    Args:
        training: The training arguments. The others wait for `ddp_timeout` at most.
        work: What is done, in which ranks do not talk to each other.

    Returns:
        What it gave on this rank.

    Raises:
        ValueError: On all ranks, if it failed on one; that one raises its own error.
    """
    rank_sync = RankSync(training.world_size, training.ddp_timeout_delta)
    is_first = training.local_process_index == 0
    try:
        first: Any = rank_sync.run_on_all(lambda: work() if is_first else None)
        then: Any = rank_sync.run_on_all(lambda: None if is_first else work())
    except RemoteError as error:
        raise ValueError(str(error)) from None
    result: Result = first if is_first else then
    return result
