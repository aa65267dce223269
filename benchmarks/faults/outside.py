"""What starts the ranks of a case, and injects faults from outside of them."""

from collections.abc import Callable

from benchmarks.faults import damages, disks, signals
from benchmarks.faults.case import Case
from benchmarks.faults.ranks import End, Ranks


def train(case: Case) -> End:
    """Trains with a fault inside of the ranks."""
    return Ranks(case.start, case.num_ranks, by_hand=case.kind.by_hand).wait(case.kind.limit_seconds)


OUTSIDE: dict[str, Callable[[Case], End]] = {
    function.__name__: function
    for function in (
        train,
        signals.kill_one,
        signals.kill_all,
        signals.sigterm_one,
        signals.sigterm_all,
        signals.sigint_one,
        signals.sigint_all,
        signals.sigint_twice,
        signals.stop_one,
        signals.kill_worker,
        signals.absent,
        disks.on_small_disk,
        disks.read_only,
        disks.read_only_later,
        disks.two_runs,
        damages.resumed,
        damages.damaged,
    )
}
