import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.launching import run_to_end

_ENDS_WHEN_ASKED = """
import pathlib, signal, sys, time
def end(*_):
    pathlib.Path(sys.argv[1]).write_text("asked")
    sys.exit()
signal.signal(signal.SIGTERM, end)
time.sleep(60)
"""


def test_what_takes_too_long_is_asked_to_end_and_can_end_what_it_began(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_to_end([sys.executable, "-S", "-c", _ENDS_WHEN_ASKED, str(tmp_path / "said")], 1.5)
    assert (tmp_path / "said").read_text() == "asked"


def test_what_fails_is_told_with_its_last_words() -> None:
    with pytest.raises(RuntimeError, match=r"failed with status 1:\n(?s:.*)no such luck"):
        run_to_end([sys.executable, "-S", "-c", "raise SystemExit('no such luck')"], 30.0)
