"""Findings: streams that stopped learning or got worse."""

import functools
from collections.abc import Iterator

import numpy as np
import pandas as pd

from mixer.tools.records.run import Run
from mixer.tools.report.findings.finding import Finding
from mixer.utils.arrays import FloatArray

_GUARD = "OverfitGuard"
# No finding before this part of the budget: a learning rate in warm-up teaches little.
_LEAST_PROGRESS = 0.2
# A smaller relative fall of the loss counts as none.
_LEAST_FALL = 0.005
_FEWEST_EVALUATIONS = 4
# The halves of the last third of the steps are compared, from so many steps per half on.
_PART_OF_STEPS, _FEWEST_STEPS, _DEVIATIONS = 1 / 3, 30, 2.0
# A validation loss has risen if it ends this part above its least, after so many worse evaluations.
_LEAST_RISE, _FEWEST_WORSE = 0.02, 2
# A rise must also exceed so many standard deviations of the noise, estimated from so many evaluations on.
_NOISE_DEVIATIONS, _FEWEST_FOR_NOISE = 4.0, 8
# The training loss fell meanwhile if it is lower by this part, in means over a tenth of the steps.
_LEAST_TRAINING_FALL, _WINDOW = 0.01, 0.1


def overfitting(run: Run) -> list[Finding]:
    """Finds streams with a rising validation loss and a falling training loss."""
    return [Finding(streams=[name], text=text) for name, (text, falls) in _risen(run).items() if falls]


def held_back(run: Run) -> Iterator[Finding]:
    """Finds streams from which `OverfitGuard` has taken share: its least factor and the step after which it came."""
    if _GUARD not in str(run.description.get("mixing")):
        return
    rows = run.decisions[(run.decisions["rule"] == _GUARD) & (run.decisions["term"] == "factor")]
    names = [row["name"] for row in run.description.get("streams", [])]
    factors = {step: own for step, own in zip(rows["step"], rows["values"], strict=True) if len(own) == len(names)}
    for place, name in enumerate(names) if factors else ():
        step = min(factors, key=lambda step: factors[step][place])
        if factors[step][place] < 1.0:
            text = f"{name} (down to {factors[step][place]:.2g} of its share, at step {step:,})"
            yield Finding(streams=[name], text=text)


def getting_worse(run: Run) -> list[Finding]:
    """Finds evaluation sets with a rising loss, but no falling training loss."""
    return [Finding(streams=[name], text=text) for name, (text, falls) in _risen(run).items() if not falls]


def no_longer_learning(run: Run) -> Iterator[Finding]:
    """Finds active streams with a validation loss, or else training loss, that has stopped falling."""
    risen = _risen(run)
    for name in dict.fromkeys([*run.streams, *run.evaluations]) if _is_judged(run) else ():
        rows, evaluations = run.stream_columns.get(name), run.evaluation_columns.get(name)
        if name in risen or not run.is_wanted(name) or (rows is not None and not rows["active"][-1]):
            continue
        text = _training_stalls(run.streams[name]) if evaluations is None else _validation_stalls(evaluations["loss"])
        if text:
            yield Finding(streams=[name], text=f"{name}, {text}")


def _is_judged(run: Run) -> bool:
    return float(run.clock["progress"].iloc[-1]) >= _LEAST_PROGRESS


@functools.lru_cache(4)
def _risen(run: Run) -> dict[str, tuple[str, bool]]:
    """Gives, by wanted evaluation set with a rising loss, the message and whether the training loss fell meanwhile."""
    found = {}
    for name, rows in run.evaluation_columns.items() if _is_judged(run) else ():
        losses = rows["loss"]
        if not (run.is_wanted(name) and np.isfinite(losses).all()):
            continue
        best = int(losses.argmin())
        bar = losses[best] + max(_LEAST_RISE * abs(losses[best]), _NOISE_DEVIATIONS * _noise(losses))
        if losses[-1] > bar and int((losses[best + 1 :] > bar).sum()) >= _FEWEST_WORSE:
            stream = run.streams.get(name)
            left = "" if stream is None or stream["active"].iloc[-1] else " after it left"
            text = f"{name}{left} from {losses[best]:.3f} at step {rows['step'][best]:,} to {losses[-1]:.3f}"
            found[name] = text, _training_fell(stream, int(rows["step"][best]))
    return found


def _noise(losses: FloatArray) -> float:
    """Estimates the standard deviation of single evaluations around their trend from second differences."""
    if len(losses) < _FEWEST_FOR_NOISE:
        return 0.0
    # The median of the size of a normal variable is 0.6745 deviations, and a second difference has six variances.
    return float(np.median(np.abs(np.diff(losses, 2))) / 0.6745 / np.sqrt(6.0))


def _training_fell(rows: pd.DataFrame | None, since: int) -> bool:
    if rows is None:
        return False
    rows = rows[np.isfinite(rows["loss"])]
    window = max(1, int(_WINDOW * len(rows)))
    before, after = rows[rows["step"] <= since].iloc[-window:], rows[rows["step"] > since].iloc[-window:]
    if before.empty or after.empty:
        return False
    first, last = (_mean_and_error(part)[0] for part in (before, after))
    return last < first - _LEAST_TRAINING_FALL * abs(first)


def _validation_stalls(losses: FloatArray) -> str:
    if len(losses) < _FEWEST_EVALUATIONS or not np.isfinite(losses).all():
        return ""
    first, second = (float(half.min()) for half in np.array_split(losses, 2))
    if first - second >= _LEAST_FALL * abs(first):
        return ""
    return f"validation loss {first:.3f} at best in the first half of the evaluations and {second:.3f} in the second"


def _training_stalls(rows: pd.DataFrame) -> str:
    rows = rows[np.isfinite(rows["loss"])]
    half = int(_PART_OF_STEPS * len(rows)) // 2
    if half < _FEWEST_STEPS:
        return ""
    (first, first_error), (second, second_error) = map(
        _mean_and_error, (rows.iloc[-2 * half : -half], rows.iloc[-half:])
    )
    if first - second + _DEVIATIONS * np.hypot(first_error, second_error) >= _LEAST_FALL * abs(first):
        return ""
    return f"training loss {first:.3f} and then {second:.3f} in the halves of the last third"


def _mean_and_error(rows: pd.DataFrame) -> tuple[float, float]:
    """Gives the mean loss of an item and its standard error from the spread over steps."""
    items, losses = rows["items"].to_numpy(dtype=np.float64), rows["loss"].to_numpy()
    shares = items / items.sum()
    mean = float(shares @ losses)
    return mean, float(np.sqrt((shares**2) @ (losses - mean) ** 2))
