"""Rules for the replay ratio: constant, over the run, or by the amount of data seen."""

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Literal

import numpy as np

from mixer.policies import Mixture, Observation
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import InvalidValueError

_NOTHING: Mapping[str, int] = MappingProxyType({})


class Ratio:
    """A rule for `ρ`, the share of the final mixture that is replayed. It has no state.

    A rule over the run's progress defines `at`, any other one `start` and `update`.
    """

    is_constant: bool = False

    def at(self, progress: float) -> float:
        """Returns `ρ`, in [0, 1), at a progress in [0, 1]."""
        raise NotImplementedError

    def start(self, mixture: Mixture, earlier: Mapping[str, int] = _NOTHING) -> float:
        """Returns `ρ` for the first step; `earlier` has the sizes of the streams of earlier runs, by name."""
        return self.at(0.0)

    def update(self, observation: Observation) -> float:
        """Returns `ρ` for the next step, after the observation of the last one."""
        return self.at(observation.progress)


class Constant(Ratio):
    """The same `ρ` throughout.

    Continued pre-training took 5 % for a weak shift and 25 % for a strong one (Ibrahim et al. 2024, arXiv:2403.08763).

    Args:
        value: `ρ`, in [0, 1).

    Raises:
        ValueError: If it is outside.
    """

    is_constant = True

    def __init__(self, value: float):
        self.value = check_ratio("ratio", value)

    def at(self, progress: float) -> float:
        """Returns the value; see `Ratio.at`."""
        return self.value


class OverProgress(Ratio):
    """`ρ` over the progress of the run, which is that of the task where each task is a run of its own.

    Args:
        course: `f(progress) -> ratio`, or pairs of a progress in [0, 1], ascending, and the ratio there; in between it
            is linear, before the first pair and after the last one constant.

    Raises:
        ValueError: If there is no pair, a progress is outside [0, 1], they do not ascend, or a ratio is outside [0, 1);
            for a function when it gives that.

    Example:
        >>> ratio = OverProgress([(0.0, 0.1), (0.5, 0.3)])
        >>> round(ratio.at(0.25), 3)
        0.2
    """

    def __init__(self, course: Callable[[float], float] | Sequence[tuple[float, float]]):
        self._function = course if callable(course) else _interpolation(course)

    def at(self, progress: float) -> float:
        """Returns `ρ` at a progress in [0, 1]; raises a `ValueError` if it is no ratio."""
        return check_ratio(f"ratio at progress {progress:.4g}", self._function(progress))


class OfSeen(Ratio):
    """What is old among all that was seen: `ρ = 1 - Σ_{k in C} N_k / Σ_{k in S} N_k`.

    S are the streams (but for memories) that have given a sample so far, C those of them that were there in the last
    step. By `"tasks"`, `N_k = 1`: the T-th task in turn gets `1/T` and memory `1 - 1/T`. By `"samples"`, `N_k` is the
    size of the data set: each old sample has the same part in the mix as each new one. Both are 0 during the first
    task, and where no stream is there any more they go on as if the smallest were. In a continual run S includes the
    earlier tasks.

    Args:
        by: What is counted.

    Raises:
        ValueError: If that is another word; at the start of the run if the size of a stream is counted and not known.
    """

    def __init__(self, by: Literal["tasks", "samples"]):
        if by not in ("tasks", "samples"):
            expected = "a number in [0, 1), 'tasks', 'samples', a list of (progress, ratio) or a function of progress"
            raise InvalidValueError(option="ratio", expected=expected, found=by)
        self.by = by

    def start(self, mixture: Mixture, earlier: Mapping[str, int] = _NOTHING) -> float:
        """Counts what earlier runs saw; see `Ratio.start`."""
        is_memory = np.isin(np.arange(len(mixture.names)), mixture.memories)
        sizes = mixture.num_samples.astype(np.float64)
        unknown = [mixture.names[k] for k in np.flatnonzero((sizes == 0) & ~is_memory)]
        if self.by == "samples" and unknown:
            text = f"'samples' counts the samples of streams, but {unknown} have no size. Use ratio='tasks'."
            raise InvalidValueError.about("ratio", text, found=unknown)
        self._sizes: FloatArray = np.where(is_memory, 0.0, sizes if self.by == "samples" else 1.0)
        self._earlier = float(sum(earlier.values()) if self.by == "samples" else len(earlier))
        now = float(self._sizes[mixture.is_active].sum())
        return self._old(now, now) if self._earlier and now else 0.0

    def update(self, observation: Observation) -> float:
        """Counts what was seen and what is there; see `Ratio.update`."""
        shares = observation.weights if observation.shares is None else observation.shares
        sizes = np.where(observation.seen > 0, self._sizes, 0.0)
        if not sizes.any():
            return 0.0
        now = float(sizes[shares > 0.0].sum()) or float(sizes[sizes > 0.0].min())
        return self._old(now, float(sizes.sum()))

    def _old(self, now: float, seen: float) -> float:
        return 1.0 - now / (self._earlier + seen)


def as_ratio(ratio: float | str | Callable[[float], float] | Sequence[tuple[float, float]] | Ratio) -> Ratio:
    """Converts a user's `ratio` to a rule.

    Args:
        ratio: A number, `"tasks"` or `"samples"` (see `OfSeen`), a course over the run (see `OverProgress`), or a rule.

    Returns:
        The rule.

    Raises:
        ValueError: If it is none of these, or outside its range.
    """
    if isinstance(ratio, Ratio):
        return ratio
    if isinstance(ratio, str):
        return OfSeen(ratio)  # type: ignore[arg-type]  # it refuses other words
    is_course = callable(ratio) or isinstance(ratio, Sequence)
    return OverProgress(ratio) if is_course else Constant(ratio)  # type: ignore[arg-type]  # so does this


def check_ratio(name: str, value: float) -> float:
    """Refuses a value that is no replay ratio.

    Args:
        name: What to call it in an error.
        value: The ratio.

    Returns:
        The ratio.

    Raises:
        ValueError: If it is no number in [0, 1).
    """
    is_number = isinstance(value, int | float | np.number) and not isinstance(value, bool)
    if not (is_number and 0.0 <= value < 1.0):
        hint = "It is the part of the whole mix that is replayed; 0.5 is as many samples again as there are new ones."
        raise InvalidValueError(option=name, expected="a number in [0, 1)", found=value, hint=hint)
    return float(value)


def _interpolation(points: Sequence[tuple[float, float]]) -> Callable[[float], float]:
    if not all(isinstance(point, Sequence) and len(point) == 2 for point in points):
        raise InvalidValueError(option="ratio", expected="a list of (progress, ratio)", found=points)
    progresses = [float(progress) for progress, _ in points]
    if not progresses or progresses != sorted(set(progresses)) or not 0.0 <= progresses[0] <= progresses[-1] <= 1.0:
        raise InvalidValueError(option="ratio", expected="at progresses that ascend in [0, 1]", found=progresses)
    ratios = [check_ratio(f"ratio at progress {progress:.4g}", ratio) for progress, ratio in points]
    return lambda progress: float(np.interp(progress, progresses, ratios))
