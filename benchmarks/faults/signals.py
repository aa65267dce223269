"""Signals to ranks, and ranks that are not there."""

import signal
import time

from benchmarks.faults.case import Case, MissedError
from benchmarks.faults.ranks import End, Ranks

_SECONDS_TO_SECOND = 1.2


def _signalled(case: Case, number: int, to_all: bool) -> End:
    ranks = Ranks(case.start, case.num_ranks)
    is_active = ranks.wait_until(case.instant)
    ranks.send(number, None if to_all else [case.fault["rank"]])
    end = ranks.wait(case.kind.limit_seconds)
    if not is_active:
        raise MissedError
    return end


def kill_one(case: Case) -> End:
    """Kills one rank."""
    return _signalled(case, signal.SIGKILL, to_all=False)


def kill_all(case: Case) -> End:
    """Kills all ranks."""
    return _signalled(case, signal.SIGKILL, to_all=True)


def sigterm_one(case: Case) -> End:
    """Sends SIGTERM to one rank."""
    return _signalled(case, signal.SIGTERM, to_all=False)


def sigterm_all(case: Case) -> End:
    """Sends SIGTERM to all ranks, as clusters do before they take a machine away."""
    return _signalled(case, signal.SIGTERM, to_all=True)


def sigint_one(case: Case) -> End:
    """Sends SIGINT to one rank."""
    return _signalled(case, signal.SIGINT, to_all=False)


def sigint_all(case: Case) -> End:
    """Sends SIGINT to all ranks, as a terminal does."""
    return _signalled(case, signal.SIGINT, to_all=True)


def sigint_twice(case: Case) -> End:
    """Sends SIGINT to all ranks, and once more while the step that was in progress still goes on."""
    ranks = Ranks(case.start, case.num_ranks)
    is_active = ranks.wait_until(case.instant)
    ranks.send(signal.SIGINT)
    time.sleep(_SECONDS_TO_SECOND)
    ranks.send(signal.SIGINT)
    end = ranks.wait(case.kind.limit_seconds)
    if not is_active:
        raise MissedError
    return end


def stop_one(case: Case) -> End:
    """Stops one rank for good; what it cannot do, ending, the launcher does for it."""
    ranks = Ranks(case.start, case.num_ranks)
    is_active = ranks.wait_until(case.instant)
    ranks.send(signal.SIGSTOP, [case.fault["rank"]])
    end = ranks.wait(case.kind.limit_seconds, apart_from=case.fault["rank"])
    if not is_active:
        raise MissedError
    return end


def kill_worker(case: Case) -> End:
    """Kills the worker process of one rank."""
    ranks = Ranks(case.start, case.num_ranks)
    is_active = ranks.wait_until(case.instant)
    workers = ranks.loader_workers(case.fault["rank"])
    for worker in workers:
        worker.kill()
    end = ranks.wait(case.kind.limit_seconds)
    if not (is_active and workers):
        raise MissedError
    return end


def absent(case: Case) -> End:
    """Starts all ranks but one."""
    return Ranks(case.start, case.num_ranks, absent=case.fault["rank"]).wait(case.kind.limit_seconds)
