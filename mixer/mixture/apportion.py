"""Apportionment: converts weights to whole samples without letting any stream drift from its share."""

import math
from fractions import Fraction

import numpy as np

from mixer.utils.arrays import FloatArray, Int64Array

# Shares are sums of rounded numbers: bounds may be missed by this much.
_TOLERANCE = 1e-9
_FEW = 16
_LARGEST_DENOMINATOR = 10**6


def as_fraction(number: float) -> Fraction:
    """Returns the simple fraction that a number stands for: 5/3 for 1.6666666666666667, 11/10 for 1.1."""
    simple = Fraction(float(number)).limit_denominator(_LARGEST_DENOMINATOR)
    return simple if math.isclose(simple, number, rel_tol=1e-14) else Fraction(float(number))


def apportion(shares: FloatArray, total: int, deficit: FloatArray) -> tuple[Int64Array, FloatArray]:
    """Converts the shares of one step to sample counts and carries the remainder to the next step.

    This is earliest-deadline apportionment (Tijdeman 1980, "The chairman assignment problem"), a whole step at once.
    With `δ = 1/(2K − 2)`, a stream *may* get one more sample if that leaves it at most `1 − δ` ahead of its share, and
    *must* get one if it would otherwise be more than `1 − δ` behind. The remaining samples go to the streams that would
    be too far behind soonest. With constant shares every stream stays within `1 − δ` of its due at every step. With
    varying shares more streams can be due than there are samples; then the one furthest behind comes first (the greedy
    rule of the cup game; Adler et al. 2003, "A proportionate fair scheduling rule with good worst-case performance"),
    and no stream is ever more than `1 + ln K` behind. Jasińska, Kuszmaul and Lee 2026 (arXiv:2602.18610) study such a
    hybrid of the two rules.

    Args:
        shares: `[num_streams]`: non-negative weights that sum to 1.
        total: Number of samples of the step.
        deficit: `[num_streams]`: samples due to each stream so far; they sum to 0.

    Returns:
        Counts, int64 `[num_streams]`, which sum to `total`, and the new deficit. A stream with share 0 gets 0 samples,
        and its deficit is distributed among the others.

    Example:
        >>> counts, deficit = apportion(np.array([0.5, 0.3, 0.2]), total=4, deficit=np.zeros(3))
        >>> counts.tolist()
        [2, 1, 1]
    """
    slack = 1.0 - 1.0 / (2 * len(shares) - 2) if len(shares) > 1 else 0.5
    if len(shares) <= _FEW and (found := _apportion_few(shares.tolist(), total, deficit.tolist(), slack)) is not None:
        return found
    if np.count_nonzero(shares) < len(shares):
        return _apportion_nonzero(shares, total, deficit)
    due = deficit + shares * total
    counts = np.maximum(np.ceil(due - slack - _TOLERANCE), 0.0)
    missing = total - int(counts.sum())
    if missing > 0:
        behind = due - counts
        may_have_one = behind >= 1.0 - slack - _TOLERANCE
        counts[_first(np.where(may_have_one, (slack - behind) / shares, np.inf), missing)] += 1.0
    while missing < 0:
        first = _first_to_wait(due, counts)[:-missing]
        counts[first] -= 1.0
        missing += len(first)
    return counts.astype(np.int64), due - counts


def _apportion_few(
    shares: list[float], total: int, deficit: list[float], slack: float
) -> tuple[Int64Array, FloatArray] | None:
    """Does the same with a few numbers, for which NumPy's calls take longer.

    `None` if a share is 0 or too many streams are due.
    """
    due, counts, behind, deadlines = [], [], [], []
    least = 1.0 - slack - _TOLERANCE
    for before, share in zip(deficit, shares, strict=True):
        if not share:
            return None
        own = before + share * total
        count = max(math.ceil(own - slack - _TOLERANCE), 0)
        left = own - count
        due.append(own)
        counts.append(count)
        behind.append(left)
        deadlines.append((slack - left) / share if left >= least else math.inf)
    missing = total - sum(counts)
    if missing < 0:
        return None
    for number in sorted(range(len(deadlines)), key=deadlines.__getitem__)[:missing]:
        counts[number] += 1
        behind[number] = due[number] - counts[number]
    return np.array(counts, dtype=np.int64), np.array(behind)


def _first(deadlines: FloatArray, count: int) -> Int64Array:
    """Returns the streams with the earliest deadlines; of equal ones the first, on every processor.

    `np.argpartition` picks among equal ones as the processor's vector instructions have it.
    """
    last = np.partition(deadlines, count - 1)[count - 1]
    earlier = np.flatnonzero(deadlines < last)
    return np.concatenate([earlier, np.flatnonzero(deadlines == last)[: count - len(earlier)]])


def _first_to_wait(due: FloatArray, counts: FloatArray) -> Int64Array:
    """Returns streams that give a sample back before any gives a second one, the one furthest ahead first.

    Equivalent to taking samples one by one, always from the stream furthest ahead: giving one back reduces a stream's
    lead by a whole sample. One by one costs K² if all of 10,000 streams are due.
    """
    served = np.flatnonzero(counts)
    behind = (due - counts)[served]
    order = np.argsort(behind, kind="stable")
    first: Int64Array = served[order[behind[order] < behind.min() + 1.0]]
    return first


def _apportion_nonzero(shares: FloatArray, total: int, deficit: FloatArray) -> tuple[Int64Array, FloatArray]:
    positive = np.flatnonzero(shares)
    counts, new_deficit = np.zeros(len(shares), dtype=np.int64), np.zeros(len(shares))
    left = deficit.sum() - deficit[positive].sum()
    counts[positive], new_deficit[positive] = apportion(
        shares[positive], total, deficit[positive] + left * shares[positive]
    )
    return counts, new_deficit
