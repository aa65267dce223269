"""Wall time and processor time: the one is what a user waits for, the other what a busy machine changes less."""

import time
from dataclasses import dataclass, field


@dataclass
class Clock:
    """Counts from where it is made; what is done between `stop` and `go_on` does not count.

    Args:
        seconds: Wall time so far.
        processor_seconds: Processor time of all threads of this process so far.
    """

    seconds: float = 0.0
    processor_seconds: float = 0.0
    _since: tuple[float, float] = field(default_factory=lambda: _now())

    def stop(self) -> dict[str, float]:
        """Stops.

        Returns:
            `seconds` and `processor_seconds` so far.
        """
        wall, processor = _now()
        self.seconds += wall - self._since[0]
        self.processor_seconds += processor - self._since[1]
        return {"seconds": self.seconds, "processor_seconds": self.processor_seconds}

    def go_on(self) -> None:
        """Counts again."""
        self._since = _now()


def _now() -> tuple[float, float]:
    return time.perf_counter(), time.process_time()
