"""Faults that work inside of the ranks: each changes the parts of the run before the trainer is built."""

from collections.abc import Callable

from benchmarks.faults import controls, data, filling, leaving, waits
from benchmarks.faults.run import Parts, Start

INSIDE: dict[str, Callable[[Parts, Start, int], None]] = {
    function.__name__: function
    for function in (
        data.note_reads,
        data.failing_sample,
        data.skipped_sample,
        data.empty_sample,
        data.long_sample,
        data.shrinking_data,
        data.growing_data,
        data.other_length,
        data.bad_loss,
        controls.failing_policy,
        controls.nonsense_policy,
        controls.other_policy,
        controls.failing_schedule,
        controls.nonsense_schedule,
        leaving.leaves,
        leaving.cannot_begin,
        waits.early_meeting,
        waits.long_step,
        waits.held_step,
        waits.slow_rank,
        waits.leaping_clock,
        filling.full_disk,
    )
}
