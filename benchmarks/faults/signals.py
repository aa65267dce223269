"""Signals to ranks, and ranks that are not there."""

import signal
import time
from collections.abc import Callable

from benchmarks.faults.case import Case, MissedError
from benchmarks.faults.ranks import End, Ranks

_SECONDS_TO_SECOND = 1.2


def _disturbed(case: Case, disturb: Callable[[Ranks], object], apart_from: int | None = None) -> End:
    ranks = Ranks(case.start, case.num_ranks)
    is_active = ranks.wait_until(case.instant)
    is_active = disturb(ranks) is not False and is_active
    end = ranks.wait(case.kind.limit_seconds, apart_from)
    if not is_active:
        raise MissedError
    return end


def to_one(number: signal.Signals) -> Callable[[Case], End]:
    """Sends a signal to one rank."""
    return lambda case: _disturbed(case, lambda ranks: ranks.send(number, [case.fault["rank"]]))


def to_all(number: signal.Signals) -> Callable[[Case], End]:
    """Sends a signal to all ranks, as a terminal does, or a cluster before it takes a machine away."""
    return lambda case: _disturbed(case, lambda ranks: ranks.send(number))


def sigint_twice(case: Case) -> End:
    """Sends SIGINT to all ranks, and once more while the step that was in progress still goes on."""

    def twice(ranks: Ranks) -> None:
        ranks.send(signal.SIGINT)
        time.sleep(_SECONDS_TO_SECOND)
        ranks.send(signal.SIGINT)

    return _disturbed(case, twice)


def stop_one(case: Case) -> End:
    """Stops one rank for good; what it cannot do, ending, the launcher does for it."""
    rank = case.fault["rank"]
    return _disturbed(case, lambda ranks: ranks.send(signal.SIGSTOP, [rank]), apart_from=rank)


def kill_worker(case: Case) -> End:
    """Kills the worker process of one rank."""

    def kill(ranks: Ranks) -> bool:
        workers = ranks.loader_workers(case.fault["rank"])
        for worker in workers:
            worker.kill()
        return bool(workers)

    return _disturbed(case, kill)


def absent(case: Case) -> End:
    """Starts all ranks but one."""
    return Ranks(case.start, case.num_ranks, absent=case.fault["rank"]).wait(case.kind.limit_seconds)
