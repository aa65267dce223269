"""What short runs say of a mixture: one answer, in the order in which the evidence counts."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

Verdict = Literal[
    "too short", "not explained", "not clear", "nothing to gain", "breaks a bound", "not confirmed", "gain"
]
_LEAST_GAIN, _TIMES_NOISE = 0.005, 3.0
_SINGLE = 2.1  # times three: above so many times a single difference, one in twenty lies by chance (Student's t)
_LEAST_LEARNED = 0.05  # of the objective before a run: less is hardly learned


@dataclass(frozen=True)
class Evidence:
    """Figures of short runs.

    Args:
        gain: How far the best mixture's objective is below that of your weights, on a seed that the fit has not
            seen, relative to the latter (as it is where that is 0).
        noise: How far runs of nearly the same mixture lie apart on one seed, likewise, as the gain is of one seed. As
            that is a single difference, it counts 2.1 times, but where runs of your weights on two seeds lie nearer.
        learned: How far the objective of your weights fell in a run, relative to where it began; `None` if that is
            unknown.
        is_explained: Whether a fit predicts mixtures that were left out.
        broken: Names of bounds that the best mixture does not keep.
        confirmed_gain: The gain in runs of twice the length, or of whole length on a further seed; `None` before them.
    """

    gain: float
    noise: float
    learned: float | None = None
    is_explained: bool = True
    broken: Sequence[str] = ()
    confirmed_gain: float | None = None

    @property
    def is_too_short(self) -> bool:
        """Whether the runs have hardly learned, so that they say nothing of longer ones."""
        return self.learned is not None and self.learned < _LEAST_LEARNED

    @property
    def is_clear(self) -> bool:
        """Whether the gain is half a per cent or more, and three times the noise."""
        return self.gain >= max(_LEAST_GAIN, _TIMES_NOISE * self.noise)

    @property
    def verdict(self) -> Verdict:
        """The answer: each question is asked only if those before it leave it open.

        Before the runs that confirm a gain it is `"not confirmed"`.
        """
        if self.is_too_short:
            return "too short"
        if not self.is_explained:
            return "not explained"
        if not self.is_clear:
            could_hide = _LEAST_GAIN < _TIMES_NOISE * self.noise > -self.gain
            return "not clear" if could_hide else "nothing to gain"
        if self.broken:
            return "breaks a bound"
        is_confirmed = self.confirmed_gain is not None and self.confirmed_gain > 0.0
        return "gain" if is_confirmed else "not confirmed"


def gain_of(own: float, found: float) -> float:
    """Gives how far an objective is below that of your weights, relative to the latter."""
    return (own - found) / (abs(own) or 1.0)


def noise_of(first: float, near: float, other_seed: float) -> float:
    """Gives the noise of a gain.

    Args:
        first: The objective of your weights.
        near: That of nearly the same weights on the same seed.
        other_seed: That of your weights on another seed.
    """
    of_pair, of_seeds = abs(near - first), abs(other_seed - first)
    # Exactly the same: too few samples to make a difference between the mixtures.
    noise = min(max(of_pair, of_seeds), _SINGLE * of_pair) if of_pair else of_seeds
    return noise / (abs(first) or 1.0)


def learned_in(before: float, after: float) -> float | None:
    """Gives how far an objective fell in a run, relative to where it began; `None` if that is not finite."""
    return (before - after) / (abs(before) or 1.0) if np.isfinite(before) else None


def answer(evidence: Evidence, going_on: str) -> str:
    """Says what follows for the user.

    Args:
        evidence: The figures.
        going_on: The command that adds runs to these.
    """
    texts: dict[Verdict, str] = {
        "too short": "Too short to tell: the model has hardly learned in these runs. Raise --share.",
        "not explained": f"Cannot tell: a fit to these runs explains nothing. Add runs: {going_on}",
        "not clear": f"Cannot tell: the difference is within the noise. Raise --share, or add runs: {going_on}",
        "nothing to gain": "There is nothing to gain that runs of this length show: stay with your weights.",
        "breaks a bound": f"Stay with your weights: the best mixture breaks bounds ({', '.join(evidence.broken)}).",
        "not confirmed": "Stay with your weights: the gain did not last in the runs that were to confirm it.",
        "gain": "There is something to gain: a better mixture won here, and again in the runs that confirm it.",
    }
    return texts[evidence.verdict]


def reasons(evidence: Evidence, steps: int, confirming_steps: int) -> list[str]:
    """Says in words what the answer rests on.

    Args:
        evidence: The figures.
        steps: Length of the runs.
        confirming_steps: Length of those that confirm a gain.
    """
    way = "fell" if (evidence.learned or 0.0) >= 0.0 else "rose"
    fell = "" if evidence.learned is None else f" With these the objective {way} by {abs(evidence.learned):.1%}."
    found = [
        f"In runs of {steps} steps on another seed the best mixture is {_in_words(evidence.gain)} than your "
        f"weights; the noise is {evidence.noise:.1%}.{fell}"
    ]
    if not evidence.is_explained:
        found.append("Mixtures that are left out of the fit are predicted no better than by the mean of the others.")
    if evidence.confirmed_gain is not None:
        kind = f"of {confirming_steps} steps" if confirming_steps != steps else "on a further seed"
        found.append(f"In runs {kind} it is {_in_words(evidence.confirmed_gain)}.")
    return found


def _in_words(gain: float) -> str:
    return f"{abs(gain):.1%} {'better' if gain >= 0.0 else 'worse'}"
