"""What became of a fault."""

from dataclasses import dataclass, field
from typing import Any


@dataclass
class Outcome:
    """What became of a fault.

    Args:
        kind: The kind of fault.
        num_ranks: Number of ranks.
        number: Which one of its kind.
        fault: What was drawn.
        broken: What of the promise was not kept; empty if it was.
        has_survived: Whether the run came to its end, resumed where that is promised.
        is_equal: Whether it ended as the undisturbed one to the bit; `None` if it did not come to its end.
        lost: What was lost.
        steps_again: Steps that were done again after resuming.
        seconds: From the fault until all ranks had ended.
        was_injected: Whether there was a fault at all.
    """

    kind: str
    num_ranks: int
    number: int
    fault: dict[str, Any]
    broken: list[str] = field(default_factory=list)
    has_survived: bool = False
    is_equal: bool | None = None
    lost: str = ""
    steps_again: int = 0
    seconds: float = 0.0
    was_injected: bool = True
