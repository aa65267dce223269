"""Names under which trackers show what log entries say: the part before the slash is a panel."""

import re
from collections.abc import Collection, Mapping

_CLOCK = ("batch_size", "learning_rate_factor", "train_coverage")
_OF_A_SET = re.compile(r"eval_(.+)_loss")


def grouped(entries: Mapping[str, float]) -> dict[str, float]:
    """Gives entries that are of no group one.

    Args:
        entries: What a log entry says of the streams and the mixture.

    Returns:
        The same values, by names such as `loss/math`, `clock/batch_size` and `mixture/conflicts`.

    Example:
        >>> grouped({"loss/math": 2.0, "batch_size": 64})
        {'loss/math': 2.0, 'clock/batch_size': 64}
    """
    return {_grouped_name(name): value for name, value in entries.items()}


def evaluation_losses(logs: Mapping[str, float], sets: Collection[str]) -> dict[str, float]:
    """Picks the losses of evaluation sets out of a log entry of the Trainer's.

    Args:
        logs: The entry.
        sets: Names of evaluation sets.

    Returns:
        `eval_loss/NAME`, for those that there are.
    """
    found = {name: _OF_A_SET.fullmatch(name) for name in logs}
    return {f"eval_loss/{match[1]}": logs[name] for name, match in found.items() if match and match[1] in sets}


class Names:
    """Names that a tracker takes, one for each that it is given: no two become the same.

    Args:
        refused: What characters it does not take.
        longest: Greatest length of a name.
    """

    def __init__(self, refused: str, longest: int):
        self._refused, self._longest = re.compile(refused), longest
        self._taken: dict[str, str] = {}

    def of(self, name: str) -> str:
        """Gives the name that stands for another.

        Args:
            name: The other one, with its group.

        Returns:
            The same one where the tracker takes it; else `_` in place of what it refuses, and a number behind it
            where two would be the same.
        """
        if name not in self._taken:
            self._taken[name] = self._free(name)
        return self._taken[name]

    def _free(self, name: str) -> str:
        parts = [self._refused.sub("_", part) for part in name.split("/")]
        plain = "/".join("_" * len(part) if not part.strip(".") else part for part in parts)[: self._longest]
        free, number, taken = plain, 1, set(self._taken.values())
        while free in taken:
            number += 1
            free = f"{plain[: self._longest - len(str(number)) - 1]}_{number}"
        return free


def _grouped_name(name: str) -> str:
    if "/" in name:
        return name
    return f"clock/{name}" if name in _CLOCK else f"mixture/{name}"
