"""Commands that only read what a run left import nothing of what trains: they start fast and stay small."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.mixer.analysis.report.ledgers import write_run

# The commands one after the other in one process; stdout ends with what they imported of what trains.
SCRIPT = """
import sys
from mixer.cli.entry import main
for command in sys.argv[1:]:
    main(command.split())
trains = {"accelerate", "datasets", "peft", "torch", "transformers"}
print("imported:", *sorted(trains & set(sys.modules)))
"""


def test_commands_that_read_import_nothing_that_trains(tmp_path: Path) -> None:
    pytest.importorskip("plotly", reason="the extra `report` is not installed")
    run = tmp_path / "run"
    write_run(run)
    commands = [f"compare {run}", f"report {run}", f"watch {run} --json", f"explain {run} --step 2", "schedules"]
    done = subprocess.run([sys.executable, "-c", SCRIPT, *commands], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "imported:"
