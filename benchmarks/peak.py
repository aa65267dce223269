"""The largest resident memory of a process while it does something."""

from pathlib import Path

_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


def _kilobytes(field: str) -> int:
    lines = _STATUS.read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(f"{field}:")))


class Peak:
    """Measures from where it is made, which is after all imports; on Linux only, elsewhere there are no figures."""

    def __init__(self) -> None:
        self._before = _kilobytes("VmRSS") if _STATUS.is_file() else 0
        self.forget()

    def forget(self) -> None:
        """Forgets the peak so far, such as that of the imports, but not what was there before."""
        if _STATUS.is_file():
            _CLEAR.write_text("5")

    def figures(self) -> dict[str, float]:
        """Gives the peak since then.

        Returns:
            `peak_bytes` in all, and `growth_bytes` over what was there before.
        """
        if not _STATUS.is_file():
            return {"peak_bytes": float("nan"), "growth_bytes": float("nan")}
        peak = _kilobytes("VmHWM")
        return {"peak_bytes": 1024.0 * peak, "growth_bytes": 1024.0 * (peak - self._before)}
