"""Rates of inserting: samples a second through `ReplayBuffer.offer`, by selection, capacity and number of tasks.

What is compared is the cost of the same work. Every setting has the same number of samples offered for each slot (2, so
that a reservoir accepts half), and before each turn the selection is put back to that state with new random numbers:
else a buffer of 1,000 slots would accept fewer samples with every turn, and one of a million would not. (The million
stays as it is, its samples a slot change by less than 2 %.) `accepted` says what share of the samples was. Tasks came
one after the other, each a source and a class of its own; what is timed are steps of 32 samples of the newest one.
Only `ClassBalanced` gets samples of all: the newest alone would fill its class up in a small buffer and not in a large
one. Losses and scores are random. `Ring` with one task writes slots in a row, with several wherever the oldest entries
of other tasks were. That is what its growth with tasks in a large buffer is: of a million slots one task whose slots
were scattered by hand took 1.4 times as long as the one in a row, and 100 tasks 1.25 times.

*Hot*: a block of 8 steps in a loop, where small buffers lie in the processor's caches and large ones do not.
*Cold*: 64 MB are read before each step, as a training step would: then all of them come from memory. Settings go in
turns in rotated order; ratios are of the same turn. *Again* is the same setting a second time (A/A).

*Filling*: blocks of 10,000 samples into buffers that are not full: 10 of 1,000 slots, a tenth of one of 1e5, a
hundredth of one of 1e6 that was half full before. Columns double as they grow: the median leaves that out, which
amortised is below 0.1 µs a sample.
"""

import argparse
import gc
import time
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.common import show
from benchmarks.continual.replay.subjects import BLOCK, STEP_SIZE, WARM, Setting, Subject
from benchmarks.continual.replay.turns import MIDDLE, figures_of, in_turns, show_rates

SELECTIONS = ("Reservoir", "Ring", "ClassBalanced", "Surprise", "LossAware", "GradientDiversity")
LEAST_RECENT = "Reservoir, LeastRecent"
_SWEPT = np.ones(8 * 2**20)  # not zeros, which would all be one page


def settings_of(capacities: Sequence[int], numbers_of_tasks: Sequence[int]) -> list[Setting]:
    """Lists what is compared for a selection.

    Args:
        capacities: Capacities, ascending.
        numbers_of_tasks: Numbers of tasks, ascending.

    Returns:
        The settings, and the first of them again.
    """
    found = [Setting(capacity, tasks) for capacity in capacities for tasks in numbers_of_tasks]
    return [*found, Setting(capacities[0], numbers_of_tasks[0], copy=1)]


def insert_turn(subject: Subject, number: int, sweeps: bool = False) -> float:
    """Times one block of steps.

    Args:
        subject: The buffer.
        number: Number of the turn.
        sweeps: Whether the caches are emptied before each step.

    Returns:
        Microseconds a sample.
    """
    subject.restore(number)
    batches = subject.batches(WARM + BLOCK)
    for batch in batches[:WARM]:
        batch.offer_to(subject.buffer)
    total = 0.0
    gc.disable()
    for batch in batches[WARM:]:
        if sweeps:
            _SWEPT.sum()
        started = time.perf_counter()
        batch.offer_to(subject.buffer)
        total += time.perf_counter() - started
    gc.enable()
    return total / (BLOCK * STEP_SIZE) * 1e6


def fill_turn(subject: Subject, setting: Setting, num_samples: int) -> float:
    """Times inserting into a buffer that is not full; a full one is begun anew.

    Args:
        subject: The buffer.
        setting: Its size.
        num_samples: How many.

    Returns:
        Microseconds a sample.
    """
    total, left = 0.0, num_samples
    while left > 0:
        room = setting.capacity - len(subject.buffer)
        if room < STEP_SIZE:
            subject.empty()
            continue
        batches = subject.batches(min(room, left + STEP_SIZE - 1) // STEP_SIZE)
        gc.disable()
        started = time.perf_counter()
        for batch in batches:
            batch.offer_to(subject.buffer)
        total += time.perf_counter() - started
        gc.enable()
        left -= len(batches) * STEP_SIZE
    return total / (num_samples - left) * 1e6


def measure_selection(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Measures inserting under one selection.

    Args:
        name: Its name; `LEAST_RECENT` is a reservoir with that retrieval.
        args: The command line.

    Returns:
        `hot`, `cold` and `filling`: `microseconds` a sample by setting and `ratio`; `accepted` by setting.
    """
    selection, _, retrieval = name.partition(", ")
    settings = settings_of(args.capacities, args.tasks)
    subjects = {setting: Subject(selection, setting, retrieval=retrieval or "Uniform") for setting in settings}
    for subject in subjects.values():
        subject.settle()
    before = {setting: (own.buffer.num_kept, own.buffer.num_offered) for setting, own in subjects.items()}
    hot = in_turns(subjects, args.rounds, insert_turn)
    accepted = {
        setting.label: (own.buffer.num_kept - before[setting][0]) / (own.buffer.num_offered - before[setting][1])
        for setting, own in subjects.items()
    }
    among = {setting: subjects[setting] for setting in settings if setting.num_tasks == MIDDLE or setting.copy}
    among[Setting(args.capacities[0], 1)] = subjects[Setting(args.capacities[0], 1)]
    cold = in_turns(among, args.cold_rounds, lambda subject, number: insert_turn(subject, number, sweeps=True))
    filling = {Setting(capacity, MIDDLE): Subject(selection, Setting(capacity, MIDDLE)) for capacity in args.capacities}
    for setting, subject in filling.items():
        subject.fill(setting.capacity // 2 if setting.capacity >= 1_000_000 else 0)
    takes = {
        setting: lambda _, subject=subject, setting=setting: fill_turn(subject, setting, args.filled)
        for setting, subject in filling.items()
    }
    return {"hot": hot, "cold": cold, "filling": figures_of(takes, args.fill_rounds), "accepted": accepted}


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measures inserting under all selections.

    Args:
        args: The command line.

    Returns:
        What `measure_selection` gives, by selection.
    """
    figures = {}
    for name in args.selections:
        figures[name] = measure_selection(name, args)
        print(f"{name} done", flush=True)
    return figures


def show_figures(figures: Mapping[str, Any]) -> None:
    """Prints them.

    Args:
        figures: What `measure` gave.
    """
    titles = {"hot": "hot", "cold": "cold", "filling": "into buffers that are not full"}
    for kind, title in titles.items():
        show_rates(f"Inserting, {title}", {name: own[kind] for name, own in figures.items()})
    labels = list(next(iter(figures.values()))["accepted"])
    rows = [[label, *(f"{own['accepted'][label]:.3f}" for own in figures.values())] for label in labels]
    show("Share of the samples that was accepted", ["", *figures], rows)
