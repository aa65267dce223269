"""What a kind of fault is: what is injected, how often, what is drawn from the seed, and what is promised."""

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any


class Promise(Enum):
    """What is promised of a kind of fault."""

    GOES_ON = "the run goes on and ends equal"
    RESUMES = "the run ends on all ranks; resumed, it is equal"
    NAMED = "an error on all ranks names it; resumed without the fault, it is equal"
    NAMED_OR_GOES_ON = "the run ends equal, or an error on all ranks names it; resumed, it is equal then"
    SAVES = "the run saves and ends in order; resumed, no step is done again and it is equal"
    REFUSED = "an error on all ranks names it before a step is done; without the fault it is equal"
    SECOND_REFUSED = "the second run is refused with an error that names it; the first ends equal"
    NAMED_OR_EQUAL = "an error on all ranks names the file, or the run ends equal"
    LEAVES_OUT = "the run goes on without the sample, which is named and counted"
    SKIPS = "the steps with it are left out and named, all others stay"
    WARNS = "the steps with it are named, and made, since their gradient is finite"


@dataclass(frozen=True)
class Known:
    """What is known of the undisturbed run when faults are drawn.

    Args:
        num_ranks: Its ranks.
        instant: Draws an instant of its time: after which step, and how many seconds later.
        read: Gives which samples of the disturbed stream it reads,
        num_samples: and how many that stream has.
    """

    num_ranks: int
    instant: Callable[[random.Random], dict[str, Any]]
    read: Callable[[], list[int]]
    num_samples: int


Draw = Callable[[random.Random, Known], dict[str, Any]]


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Args:
        name: What `--kinds` calls it.
        what: What is injected.
        promise: What is promised.
        how: Starts the ranks of a `Case`, and injects it from outside of them; `None` for what works inside.
        counts: How many are injected, by the number of ranks.
        draw: Draws the numbers of one of them.
        names: What the error says on every rank that can speak, filled in with what was drawn.
        inside: What each rank does to itself; see `run.Start`.
        is_silent: Whether the rank that was drawn cannot speak.
        by_hand: Whether rank 0 keeps the store that the ranks meet in, as where they are started by hand.
        num_workers: Worker processes a rank.
        timeout_seconds: How long ranks wait for each other.
        limit_seconds: When the watchdog takes a start of the run for hung.
    """

    name: str
    what: str
    promise: Promise
    how: Callable[[Any], Any] | None = None
    counts: Mapping[int, int] = field(default_factory=lambda: {2: 3, 4: 1})
    draw: Draw = lambda generator, known: {}
    names: tuple[str, ...] = ()
    inside: Callable[..., None] | None = None
    is_silent: bool = False
    by_hand: bool = False
    num_workers: int = 0
    timeout_seconds: int = 60
    limit_seconds: float = 90.0
