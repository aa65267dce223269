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


def kill_one(case: Case) -> End:
    """Kills one rank."""
    return _disturbed(case, lambda ranks: ranks.send(signal.SIGKILL, [case.fault["rank"]]))


def kill_all(case: Case) -> End:
    """Kills all ranks."""
    return _disturbed(case, lambda ranks: ranks.send(signal.SIGKILL))


def sigterm_one(case: Case) -> End:
    """Sends SIGTERM to one rank."""
    return _disturbed(case, lambda ranks: ranks.send(signal.SIGTERM, [case.fault["rank"]]))


def sigterm_all(case: Case) -> End:
    """Sends SIGTERM to all ranks, as clusters do before they take a machine away."""
    return _disturbed(case, lambda ranks: ranks.send(signal.SIGTERM))


def sigint_one(case: Case) -> End:
    """Sends SIGINT to one rank."""
    return _disturbed(case, lambda ranks: ranks.send(signal.SIGINT, [case.fault["rank"]]))


def sigint_all(case: Case) -> End:
    """Sends SIGINT to all ranks, as a terminal does."""
    return _disturbed(case, lambda ranks: ranks.send(signal.SIGINT))


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
