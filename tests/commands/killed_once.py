"""A data source that kills a rank once, in the middle of a run."""

import os
import signal
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset

from tests.helpers import Tokens


class _KilledOnce(Dataset[dict[str, Any]]):
    def __init__(self, rows: Tokens, marker: Path, after: int):
        self._rows, self._marker, self._left = rows, marker, after

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> dict[str, Any]:
        self._left -= 1
        if self._left == 0 and os.environ.get("RANK") == "1" and self._marker.exists():
            self._marker.unlink()
            os.kill(os.getpid(), signal.SIGKILL)
        return self._rows[index]


def source(seed: int, marker: str, after: int) -> Dataset[dict[str, Any]]:
    """Rows of tokens; reading the `after`-th kills rank 1 where there is a file `marker`, which is then removed."""
    return _KilledOnce(Tokens(40, seed), Path(marker), after)
