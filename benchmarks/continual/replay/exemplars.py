"""Time of a task's end under `Herding` and `KCenter`, by the number of tasks behind it.

They choose among all 1,000 samples of a task, of 32 features and 2 classes, 10 exemplars of each, whatever came
before: the same work with 1, 10 and 100 tasks behind. The selection is put back to that state before each turn.
"""

import argparse
import gc
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from benchmarks.continual.replay.subjects import Setting
from benchmarks.continual.replay.turns import in_turns, show_rates
from replay.selection import Herding, KCenter, Offers
from replay.selection.shared.exemplars import Exemplars

_KINDS = {"Herding": Herding, "KCenter": KCenter}
_SAMPLES, _FEATURES, _CLASSES, _PER_CLASS = 1_000, 32, 2, 10


class Chooser:
    """A selection with tasks behind it.

    Args:
        selection: The selection.
        setting: Capacity and number of tasks.
    """

    def __init__(self, selection: Exemplars, setting: Setting):
        self._selection, self._capacity = selection, setting.capacity
        self._random = np.random.default_rng(setting.copy)
        selection.start(setting.capacity, 0)
        for task in range(setting.num_tasks):
            selection.choose(self._task(task))
        self._num_tasks, self._state = setting.num_tasks, selection.state_dict()

    def turn(self) -> float:
        """Times the choice of the next task.

        Returns:
            Microseconds a sample.
        """
        self._selection.start(self._capacity, 0)
        self._selection.load_state_dict(self._state)
        offers = self._task(self._num_tasks)
        gc.disable()
        started = time.perf_counter()
        self._selection.choose(offers)
        seconds = time.perf_counter() - started
        gc.enable()
        return seconds / _SAMPLES * 1e6

    def _task(self, task: int) -> Offers:
        labels = _CLASSES * task + np.arange(_SAMPLES) % _CLASSES
        features = self._random.normal(size=(_SAMPLES, _FEATURES))
        return Offers(_SAMPLES, task * _SAMPLES, np.full(_SAMPLES, task), labels, features=features)


def measure(args: argparse.Namespace) -> dict[str, Any]:
    """Measures both.

    Args:
        args: The command line.

    Returns:
        What `figures_of` gives, by selection.
    """
    capacity = (max(args.tasks) + 1) * _CLASSES * _PER_CLASS
    settings = [Setting(capacity, tasks) for tasks in args.tasks]
    settings.append(Setting(capacity, args.tasks[0], copy=1))
    figures = {}
    for name, kind in _KINDS.items():
        choosers = {setting: Chooser(kind(per_class=_PER_CLASS), setting) for setting in settings}
        figures[name] = in_turns(choosers, args.rounds, lambda chooser, _: chooser.turn())
    return figures


def show_figures(figures: Mapping[str, Any]) -> None:
    """Prints them.

    Args:
        figures: What `measure` gave.
    """
    show_rates("A task's end", figures, f"thousand samples/s, of {_SAMPLES:,}")
