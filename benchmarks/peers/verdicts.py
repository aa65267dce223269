"""Whether a contestant can do what a trial asked of it, by its figures alone, and those in few words."""

from collections.abc import Callable, Mapping
from typing import Any

Figures = Mapping[str, Any]
Verdict = tuple[bool, str]

QUESTIONS = {
    "weights": "new weights from the next step on",
    "batch_size": "a new batch size from the next step on",
    "zero": "a weight of 0",
    "resume": "resuming exactly",
    "resume_batch_size": "resuming exactly with another batch size",
    "coverage": "every row before any comes again",
    "losses": "a loss of each stream",
    "order": "every row in a shuffled pass over 65,537",
}
_PRIVATELY = "weights, privately"


def judge(trial: str, figures: Figures) -> Verdict:
    """Judges a trial.

    Args:
        trial: Its name.
        figures: What it found; empty where it was not tried.

    Returns:
        Whether it can be done, and what was found.
    """
    if not figures:
        return True, "not tried"
    if "error" in figures:
        return False, f"refused: {figures['error'].split(':')[0]}"
    return _JUDGES[trial](figures)


def _weights(figures: Figures) -> Verdict:
    late, repeated = figures["late_steps"], figures["repeated"]
    is_right = abs(figures["got"] - figures["asked"]) < 0.05 and repeated == 0
    when = "never" if late is None else f"{late} steps late" if late else "at once"
    again = f", {repeated} samples repeated" if repeated else ""
    return is_right, f"share {figures['got']:.2f} of {figures['asked']:.2f}, {when}{again}"


def _batch_size(figures: Figures) -> Verdict:
    return figures["got"] == figures["asked"], f"{figures['got']:.0f} of {figures['asked']}"


def _zero(figures: Figures) -> Verdict:
    return figures["drawn"] == 0, f"{figures['drawn']} drawn"


def _resume(figures: Figures) -> Verdict:
    repeated, lost = figures["repeated"], figures["lost"]
    return repeated == lost == 0, f"{repeated} repeated, {lost} lost of {figures['samples']:,}"


def _coverage(figures: Figures) -> Verdict:
    return min(figures["covered"]) == 1.0, " / ".join(f"{share:.0%}" for share in figures["covered"])


def _order(figures: Figures) -> Verdict:
    return figures["missing"] == 0, f"{figures['missing']} of {figures['rows']:,} never drawn"


def _losses(figures: Figures) -> Verdict:
    return bool(figures["found"]), f"{len(figures['found'])} in the log"


_JUDGES: dict[str, Callable[[Figures], Verdict]] = {
    "weights": _weights,
    _PRIVATELY: _weights,
    "batch_size": _batch_size,
    "zero": _zero,
    "resume": _resume,
    "resume_batch_size": _resume,
    "coverage": _coverage,
    "losses": _losses,
    "order": _order,
}


def found_in(trial: str, trials: Mapping[str, Figures]) -> str:
    """Gives a cell of the table of trials.

    Args:
        trial: Its name.
        trials: All trials of a contestant.

    Returns:
        What was found, bold where it cannot be done.
    """
    can, text = judge(trial, trials.get(trial, {}))
    cell = text if can else f"**{text}**"
    if trial == "weights" and _PRIVATELY in trials:
        cell += f"; through a private tensor {judge(_PRIVATELY, trials[_PRIVATELY])[1]}"
    return cell


def cannot(trials: Mapping[str, Figures]) -> list[str]:
    """Names what a contestant cannot do.

    Args:
        trials: All its trials.

    Returns:
        In words.
    """
    return [question for trial, question in QUESTIONS.items() if not judge(trial, trials.get(trial, {}))[0]]
