"""All kinds of faults, each with its promise."""

from functools import partial
from signal import SIGINT, SIGKILL, SIGTERM

from benchmarks.faults import controls, damages, data, disks, draws, filling, signals, waits
from benchmarks.faults.kinds import Kind, Promise
from benchmarks.faults.run import NUM_STEPS, SAVE_STEPS
from benchmarks.faults.signals import to_all, to_one

_KILLS = (
    Kind("kill-one", "SIGKILL of one rank", Promise.RESUMES, to_one(SIGKILL), {2: 8, 4: 4}, draws.instant_of_rank),
    Kind("kill-all", "SIGKILL of all ranks", Promise.RESUMES, to_all(SIGKILL), {2: 8, 4: 4}, draws.instant),
    Kind(
        "kill-loader-worker",
        "SIGKILL of a worker process that loads samples",
        Promise.NAMED_OR_GOES_ON,
        signals.kill_worker,
        draw=draws.step_of_rank,
        names=("A worker process died",),
        num_workers=1,
    ),
)

_SIGNALS = (
    Kind("sigterm-one", "SIGTERM to one rank", Promise.SAVES, to_one(SIGTERM), {2: 4, 4: 2}, draws.instant_of_rank),
    Kind("sigterm-all", "SIGTERM to all ranks", Promise.SAVES, to_all(SIGTERM), {2: 6, 4: 3}, draws.instant),
    Kind("sigint-one", "SIGINT to one rank", Promise.SAVES, to_one(SIGINT), {2: 3, 4: 1}, draws.instant_of_rank),
    Kind("sigint-all", "SIGINT to all ranks", Promise.SAVES, to_all(SIGINT), {2: 4, 4: 2}, draws.instant),
    Kind(
        "sigint-twice",
        "a second SIGINT to all ranks within one step",
        Promise.RESUMES,
        signals.sigint_twice,
        {2: 3, 4: 1},
        draws.in_a_step,
        inside=waits.long_step,
    ),
)

_RANKS = (
    Kind("slow-rank", "one rank is 10 times as slow", Promise.GOES_ON, draw=draws.rank, inside=waits.slow_rank),
    Kind(
        "stopped-rank",
        "one rank stops for good in the midst (SIGSTOP)",
        Promise.NAMED,
        signals.stop_one,
        {2: 2, 4: 1},
        draws.instant_of_rank,
        names=("waited 5 seconds (ddp_timeout)",),
        is_silent=True,
        timeout_seconds=5,
    ),
    Kind(
        "absent-rank",
        "a rank never arrives",
        Promise.NAMED,
        signals.absent,
        {2: 2, 4: 1},
        draws.rank,
        names=("imed out",),
        is_silent=True,
        inside=waits.early_meeting,
        timeout_seconds=5,
    ),
    Kind("clock", "the clock leaps forth or back", Promise.GOES_ON, draw=draws.clock, inside=waits.leaping_clock),
)

_LEAVING = {
    "error": ("an error of a callback ends one rank", "rank {rank} left"),
    "system-exit": ("SystemExit in one rank", "rank {rank} left"),
    "interrupt": ("KeyboardInterrupt in one rank", "rank {rank} left"),
    "os-exit": ("os._exit in one rank", "rank {rank} ended without an error message"),
}

_LEFT = tuple(
    Kind(
        f"{by}-{suffix}",
        f"{what}{told}",
        Promise.NAMED,
        counts={2: 2, 4: 1},
        draw=draws.leaving(by),
        names=(name,),
        inside=waits.leaves,
        is_silent=by == "os-exit",
        by_hand=suffix == "by-hand",
    )
    for by, (what, name) in _LEAVING.items()
    for suffix, told in (("launched", ""), ("by-hand", "; rank 0 keeps the store"))
) + tuple(
    Kind(
        f"constructor-{suffix}",
        f"the trainer cannot be made on one rank{told}",
        Promise.NAMED,
        counts={2: 2, 4: 1},
        draw=draws.rank,
        names=("batch_size must be",),
        inside=waits.cannot_begin,
        by_hand=suffix == "by-hand",
    )
    for suffix, told in (("launched", ""), ("by-hand", "; rank 0 keeps the store"))
)

_SAVES = NUM_STEPS // SAVE_STEPS
# What is written; how often on two ranks and on four; how often it is written, and the bytes of it; what is named.
_FULL: dict[str, tuple[str, dict[int, int], int, int, tuple[str, ...]]] = {
    "checkpoint": ("a checkpoint", {2: 6, 4: 2}, _SAVES, 150_000, ("checkpoint", " MiB are free on its disk")),
    "ledger": ("the ledger", {2: 4, 4: 2}, 40, 4_000, ("No space left on device",)),
    "buffer": ("the replay buffer", {2: 4, 4: 2}, _SAVES, 12_000, ("No space left on device",)),
}

_FULL_DISKS = tuple(
    Kind(
        f"full-{name}",
        f"the disk is full while {what} is written",
        Promise.NAMED,
        disks.on_small_disk,
        counts,
        draws.full_disk(name, times, num_bytes),
        names=names,
        inside=filling.full_disk,
    )
    for name, (what, counts, times, num_bytes, names) in _FULL.items()
)

_DISKS = (
    *_FULL_DISKS,
    Kind(
        "read-only",
        "the output folder is read-only from the start",
        Promise.REFUSED,
        disks.read_only,
        {2: 1, 4: 1},
        names=("Read-only file system", "disk"),
    ),
    Kind(
        "read-only-later",
        "the output folder becomes read-only",
        Promise.NAMED,
        disks.read_only_later,
        {2: 3, 4: 1},
        draws.instant,
        names=("Read-only file system",),
    ),
    Kind(
        "two-runs",
        "a second run is started in the folder of one that goes on",
        Promise.SECOND_REFUSED,
        disks.two_runs,
        {2: 4, 4: 2},
        draws.second_run,
        names=("disk/run is in use by another run",),
        inside=waits.held_step,
    ),
)

_CHECKPOINT = f"run/checkpoint-{NUM_STEPS - SAVE_STEPS}"
_FILES: dict[str, tuple[str, int, tuple[str, ...]]] = {
    "controller": ("the controller's file", 4, (f"{_CHECKPOINT}/mixing.json",)),
    "ledger": ("a file of the ledger", 5, ("run/ledger/**/*",)),
    "buffer": ("a file of the replay buffer", 5, (f"{_CHECKPOINT}/methods/memory/**/*",)),
    "marker": ("the list of a checkpoint's files", 2, (f"{_CHECKPOINT}/complete.json",)),
    "state": (
        "weights, optimizer, random state or the Trainer's own state",
        4,
        tuple(f"{_CHECKPOINT}/{name}" for name in ("*.safetensors", "*.pt", "*.pth", "trainer_state.json")),
    ),
}
_DAMAGES = {"flipped": "one bit of {} is flipped", "truncated": "the end of {} is lost", "zeroed": "bytes of {} are 0"}

_DAMAGED = tuple(
    Kind(
        f"{how}-{name}",
        sentence.format(what),
        Promise.NAMED_OR_EQUAL,
        damages.damaged,
        {2: count, 4: 1},
        draws.damage(how, *where),
        names=("{damaged}",),
    )
    for name, (what, count, where) in _FILES.items()
    for how, sentence in _DAMAGES.items()
)

_FAILING = ("'a'", "{index}", "the disk under this sample is gone")
_RAISES = partial(Kind, promise=Promise.NAMED, draw=draws.unknown_sample, names=_FAILING, inside=data.failing_sample)
_NAMES_STREAM = partial(Kind, promise=Promise.NAMED, names=("'a'",))

_DATA = (
    _RAISES("failing-sample", "one sample raises"),
    _RAISES("failing-sample-in-worker", "one sample raises in a worker process", num_workers=1),
    _RAISES(
        "skipped-sample",
        "one sample raises, on_sample_error='skip'",
        promise=Promise.LEAVES_OUT,
        inside=data.skipped_sample,
    ),
    _NAMES_STREAM("empty-sample", "one sample is empty", draw=draws.unknown_sample, inside=data.empty_sample),
    _NAMES_STREAM(
        "long-sample",
        "one sample is ten times as long as all others",
        draw=draws.unknown_sample,
        inside=data.long_sample,
    ),
    Kind(
        "shrinking-data",
        "a data set becomes shorter while the run goes on",
        Promise.NAMED,
        draw=draws.early_step,
        names=("'a'", "out of range"),
        inside=data.shrinking_data,
    ),
    Kind(
        "growing-data",
        "a data set becomes longer while the run goes on",
        Promise.GOES_ON,
        draw=draws.step,
        inside=data.growing_data,
    ),
    _NAMES_STREAM(
        "other-length",
        "a data set has another length when a run is resumed",
        how=damages.resumed,
        draw=draws.other_length,
        inside=data.other_length,
    ),
)

_NOT_FINITE = {
    "nan-loss": "loss of one sample and its gradient are NaN",
    "inf-loss": "loss of one sample is infinite, its gradient finite",
    "nan-gradient": "gradient of one sample is NaN, its loss is finite",
}

_LOSSES = tuple(
    Kind(
        f"{value}-{nonfinite}",
        f"the {word}, nonfinite={nonfinite!r}",
        promise,
        counts={2: 2, 4: 1},
        draw=draws.bad_loss(value, nonfinite),
        names=("'a'", "not finite"),
        inside=data.bad_loss,
    )
    for value, word in _NOT_FINITE.items()
    for nonfinite, promise in (
        ("raise", Promise.NAMED),
        ("skip", Promise.SKIPS),
        ("warn", Promise.WARNS if value == "inf-loss" else Promise.SKIPS),
    )
)

_CONTROLS = (
    Kind(
        "failing-policy",
        "the policy raises",
        Promise.NAMED,
        draw=draws.step,
        names=("the policy lost its way",),
        inside=controls.failing_policy,
    ),
    Kind(
        "nonsense-policy",
        "the policy returns NaN, infinite, negative or too few weights",
        Promise.NAMED,
        counts={2: 7, 4: 2},
        draw=draws.nonsense("nan", "infinite", "negative", "zero", "too few", "too many", "two-dimensional"),
        names=("ReplayRatio", "{step}"),
        inside=controls.nonsense_policy,
    ),
    Kind(
        "other-policy",
        "the policy decides otherwise on one rank",
        Promise.NAMED,
        draw=draws.step_of_rank,
        names=("planned different steps", "rank {rank}"),
        inside=controls.other_policy,
    ),
    Kind(
        "failing-schedule",
        "the batch-size schedule raises",
        Promise.NAMED,
        draw=draws.step,
        names=("the schedule lost its way",),
        inside=controls.failing_schedule,
    ),
    Kind(
        "nonsense-schedule",
        "the batch-size schedule returns NaN, infinity, text or nothing",
        Promise.NAMED,
        draw=draws.nonsense("nan", "infinite", "negative", "zero", "text", "nothing"),
        names=("Ramp", "{step}"),
        inside=controls.nonsense_schedule,
    ),
)

KINDS: tuple[Kind, ...] = (*_KILLS, *_SIGNALS, *_RANKS, *_LEFT, *_DISKS, *_DAMAGED, *_DATA, *_LOSSES, *_CONTROLS)
