"""Whether a run left out just what it was told to leave out: samples, or steps that are not finite."""

import re
from pathlib import Path

import numpy as np
import torch

from benchmarks.faults.case import Case, Outcome
from benchmarks.faults.data import STREAM
from benchmarks.faults.kinds import Promise
from benchmarks.faults.notes import END
from benchmarks.faults.ranks import End
from benchmarks.faults.run import NUM_STEPS
from mixer import Ledger

_SKIPPED = re.compile(r"Step (\d+) is skipped: the (?:loss|gradient) of \['(\w+)")
_NAMED = re.compile(r"Step (\d+): the loss of stream '(\w+)' is not finite")


def judge_losses(case: Case, undisturbed: Path, outcome: Outcome, end: End) -> None:
    """Judges a run with losses or gradients that are not finite: in which steps, and what became of the others."""
    outcome.has_survived = end.is_well
    if not end.is_well:
        outcome.lost = "the run"
        return
    ledgers = [Ledger(folder / "disk" / "run" / "ledger") for folder in (case.folder, undisturbed)]
    frames, norms = [ledger.to_pandas() for ledger in ledgers], ledgers[0].clock()
    bad = frames[0][(frames[0]["items"] > 0) & frames[0]["loss"].isna()]
    steps = {*bad["step"].tolist(), *norms[~np.isfinite(norms["gradient_norm"])]["step"].tolist()}
    first = min(steps, default=NUM_STEPS + 1)
    befores = [frame[frame["step"] < first].reset_index(drop=True) for frame in frames]
    if not befores[0].equals(befores[1]):
        outcome.broken.append("the steps before the first such loss differ")
    weights = torch.load(case.folder / END, weights_only=False)["weights"].values()
    are_finite = all(bool(torch.isfinite(weight).all()) for weight in weights)
    named = {int(step) for step, _ in _NAMED.findall(end.consoles[0])}
    skipped = {int(step) for step, _ in _SKIPPED.findall(end.consoles[0])}
    of_losses = set(bad["step"].tolist())
    if not steps:
        outcome.was_injected = False
    if named != of_losses:
        outcome.broken.append(f"steps {sorted(of_losses)} had such losses, and {sorted(named)} were named")
    if not (skipped == (set() if case.kind.promise is Promise.WARNS else steps) and are_finite):
        outcome.broken.append(f"steps {sorted(skipped)} were skipped, weights are finite: {are_finite}")
    if not are_finite:
        outcome.lost = "the weights"
    else:
        outcome.lost = f"{len(skipped)} steps" if skipped else "nothing"


def judge_left_out(case: Case, outcome: Outcome, end: End) -> None:
    """Judges a run that left a sample out: it is named and counted, and what each stream gave stays the same."""
    outcome.has_survived = end.is_well
    if not end.is_well:
        outcome.lost = "the run"
        return
    consoles = "\n".join(end.consoles)
    missing = [name for name in (one.format(**case.fault) for one in case.kind.names) if name not in consoles]
    if missing:
        outcome.broken.append(f"no rank names {missing}")
    rows = Ledger(case.folder / "disk" / "run" / "ledger").to_pandas()
    skipped = int(rows[rows["stream"] == STREAM]["skipped"].max())
    if skipped != 1 or int(rows["skipped"].max()) != 1:
        outcome.broken.append(f"{skipped} samples were counted as left out")
    if len(rows["step"].unique()) != NUM_STEPS or not (rows.groupby("stream")["count"].cumsum() == rows["seen"]).all():
        outcome.broken.append("the streams did not go on as planned")
    outcome.lost = f"{skipped} sample"
