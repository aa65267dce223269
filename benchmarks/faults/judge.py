"""Whether a promise was kept: how the ranks ended, what they said, and what differs from the undisturbed run."""

import re
import signal
from pathlib import Path

import torch

from benchmarks.faults.case import Case, Outcome
from benchmarks.faults.kinds import Promise
from benchmarks.faults.left_out import judge_left_out, judge_losses
from benchmarks.faults.notes import END, compare_ends, read_events
from benchmarks.faults.ranks import End
from benchmarks.faults.run import NUM_STEPS
from mixer import Ledger

_RESUMED = {Promise.RESUMES, Promise.NAMED, Promise.NAMED_OR_GOES_ON, Promise.SAVES, Promise.REFUSED}
_MACHINE = "timings"  # the ledger's table of timings


def differences(case: Path, undisturbed: Path) -> list[str]:
    """Compares the ends of two runs.

    Args:
        case: Folder of the one.
        undisturbed: Folder of the other.

    Returns:
        The parts that are not the same to the bit: `weights`, `optimizer`, `logs` (without timings), and the ledger's
        tables that a repetition of the run gives again.
    """
    ends = [torch.load(folder / END, weights_only=False) for folder in (case, undisturbed)]
    ledgers = [Ledger(folder / "disk" / "run" / "ledger") for folder in (case, undisturbed)]
    tables = {
        name: ledgers[0].read(name).to_pandas().equals(ledgers[1].read(name).to_pandas())
        for name in ledgers[0].tables()
        if name != _MACHINE
    }
    same = {**compare_ends(*ends), **{f"ledger/{name}": are for name, are in tables.items()}}
    return [name for name, is_same in same.items() if not is_same]


def judge(case: Case, undisturbed: Path, end: End) -> Outcome:
    """Resumes the run where that is promised, and says whether the promise was kept.

    Args:
        case: The fault.
        undisturbed: Folder of the undisturbed run.
        end: How the ranks ended after the fault.

    Returns:
        What became of it.
    """
    kind = case.kind
    outcome = Outcome(kind.name, case.num_ranks, case.number, case.fault, seconds=end.seconds)
    if end.hung:
        outcome.broken.append(f"hung: ranks {end.hung} had to be killed")
    _ENDINGS[kind.promise](case, end, outcome)
    if kind.promise is Promise.LEAVES_OUT:
        judge_left_out(case, outcome, end)
        return outcome
    if kind.promise in (Promise.SKIPS, Promise.WARNS):
        judge_losses(case, undisturbed, outcome, end)
        return outcome
    if kind.promise in _RESUMED and not (kind.promise is Promise.NAMED_OR_GOES_ON and end.is_well):
        done = _updates(case)
        resumed = case.resume()
        if not resumed.is_well:
            outcome.broken.append(f"resumed, it ended with {resumed.codes}: {_last_line(resumed)}")
            outcome.lost = "the run"
            return outcome
        outcome.steps_again = max(_updates(case) - NUM_STEPS, 0)
        if kind.promise is Promise.SAVES and outcome.steps_again:
            outcome.broken.append(f"{outcome.steps_again} steps were done again")
        if kind.promise is Promise.REFUSED and done:
            outcome.broken.append(f"{done} steps were done before it was refused")
    _judge_equality(case, undisturbed, outcome)
    return outcome


def _judge_equality(case: Case, undisturbed: Path, outcome: Outcome) -> None:
    if not (case.folder / END).is_file():
        is_refused = case.kind.promise is Promise.NAMED_OR_EQUAL
        outcome.lost = "refused" if is_refused else "the run"
        outcome.has_survived = is_refused and not outcome.broken
        if not is_refused:
            outcome.broken.append("it did not come to its end")
        return
    differing = differences(case.folder, undisturbed)
    outcome.has_survived, outcome.is_equal = True, not differing
    outcome.lost = ", ".join(differing) or "nothing"
    if differing:
        outcome.broken.append(f"DIFFERENT from the undisturbed run: {outcome.lost}")


def _ends_well(case: Case, end: End, outcome: Outcome) -> None:
    if not end.is_well:
        outcome.broken.append(f"ended with {end.codes}: {_last_line(end)}")


def _ends(case: Case, end: End, outcome: Outcome) -> None:
    if not all(end.codes):
        outcome.broken.append(f"some ranks ended as if nothing had been: {end.codes}")


def _ends_by_signal(case: Case, end: End, outcome: Outcome) -> None:
    number = signal.SIGTERM if case.kind.name.startswith("sigterm") else signal.SIGINT
    if set(end.codes) != {128 + number}:
        outcome.broken.append(f"ended with {end.codes}, not {128 + number}: {_last_line(end)}")


def _ends_naming(case: Case, end: End, outcome: Outcome) -> None:
    silent = case.fault.get("rank") if case.kind.is_silent else None
    names = [name.format(**case.fault) for name in case.kind.names]
    for rank, (code, console) in enumerate(zip(end.codes, end.consoles, strict=True)):
        if rank == silent:
            continue
        if code == 0:
            outcome.broken.append(f"rank {rank} ended as if nothing had been")
        missing = [name for name in names if name not in console]
        if missing:
            outcome.broken.append(f"rank {rank} does not name {missing}, but says: {_last(console)}")


def _ends_naming_or_well(case: Case, end: End, outcome: Outcome) -> None:
    if not end.is_well:
        _ends_naming(case, end, outcome)


def _second_is_refused(case: Case, end: End, outcome: Outcome) -> None:
    _ends_naming(case, end, outcome)
    if any(case.fault["first"]):
        outcome.broken.append(f"the first run ended with {case.fault['first']}")


_ENDINGS = {
    Promise.GOES_ON: _ends_well,
    Promise.RESUMES: _ends,
    Promise.NAMED: _ends_naming,
    Promise.NAMED_OR_GOES_ON: _ends_naming_or_well,
    Promise.SAVES: _ends_by_signal,
    Promise.REFUSED: _ends_naming,
    Promise.SECOND_REFUSED: _second_is_refused,
    Promise.NAMED_OR_EQUAL: _ends_naming_or_well,
    Promise.LEAVES_OUT: _ends_well,
    Promise.SKIPS: _ends_well,
    Promise.WARNS: _ends_well,
}


def _updates(case: Case) -> int:
    return sum(event.kind == "step" for event in read_events(case.folder))


def _last_line(end: End) -> str:
    consoles = [console for code, console in zip(end.codes, end.consoles, strict=True) if code]
    return _last(consoles[0]) if consoles else "nothing"


def _last(console: str) -> str:
    lines = [line.strip() for line in console.splitlines() if line.strip()]
    errors = [line for line in lines if re.match(r"[\w.]+(Error|Interrupt|Exception)\b", line)]
    return (errors or lines or ["nothing"])[-1][:300]
