"""What an error means that a rank meets while others are with it: whose it is, and who did not come."""

import re
import time

import torch.distributed as dist

from mixer.agreement import DisagreementError, RemoteError
from mixer.memory import MicroBatchMemoryError
from mixer.notes import has_waited, leave_note, note_waiting, read_note
from mixer.shortened import in_words

# These are raised on all ranks together, and say everything.
_TOLD = (RemoteError, DisagreementError, MicroBatchMemoryError)
_SECONDS_TO_BE_TOLD = 1.0
_LATE = "timed out|timeout"  # gloo says the one of a rank that it waits for, the other once it has given one up
OUT_OF_MEMORY = "Out of memory: "


def explained(error: Exception, where: str, rank: int, world_size: int, timeout_seconds: float) -> Exception | None:
    """Says what an error means on this rank, and leaves a note for the others if it is this rank's own.

    The others may wait for this rank in a collective. Once its process ends, they find the connection broken, and the
    note; a backend that aborts or waits on in that case (NCCL may) leaves them to the launcher.

    Args:
        error: What a run ended with on this rank.
        where: What the run was at.
        rank: This rank.
        world_size: Number of ranks.
        timeout_seconds: How long ranks wait for each other.

    Returns:
        The error of the rank that failed, or that one of them did not come in time; `None` where the error speaks for
        itself.
    """
    if world_size == 1 or isinstance(error, _TOLD):
        return None
    note = read_note()
    if note is not None and note.startswith(OUT_OF_MEMORY) and isinstance(error, RuntimeError):
        return MicroBatchMemoryError(note.removeprefix(OUT_OF_MEMORY))
    if not _is_of_a_connection(error):
        if note is None:
            leave_note(f"rank {rank} failed {where}: {in_words(error)}")
        return None
    if note is not None:
        return RemoteError(note)
    if not re.search(_LATE, str(error), re.IGNORECASE):
        return None
    message = (
        f"Rank {rank} waited {timeout_seconds:g} seconds (ddp_timeout) for others {where}. {_late(rank, world_size)}: "
        "see in their logs, or by py-spy, what they are at. A larger training.ddp_timeout waits longer for ranks that "
        "are slow. The run goes on from its newest checkpoint."
    )
    leave_note(message)
    return TimeoutError(message)


def _is_of_a_connection(error: Exception) -> bool:
    """Whether an error is that of a collective in which another rank is missing, as far as its text says so."""
    of_torch = type(error) is RuntimeError or isinstance(error, dist.DistError)
    return of_torch and re.search(f"gloo|nccl|connection|socket|{_LATE}", str(error), re.IGNORECASE) is not None


def _late(rank: int, world_size: int) -> str:
    """Says which ranks do not wait themselves."""
    note_waiting(rank)
    time.sleep(_SECONDS_TO_BE_TOLD)
    ranks = [other for other in range(world_size) if other != rank and not has_waited(other)]
    if not ranks:
        return "All of them waited, too, and not for the same"
    return f"Of rank{'s' * (len(ranks) > 1)} {', '.join(map(str, ranks))} nothing was heard"
