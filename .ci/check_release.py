"""Holds a wheel to what the README says of it: `make release-check` runs it by the environment that has the wheel.

Nothing of the checkout can be imported: commands run in an empty folder, without PYTHONPATH.
"""

import os
import re
import subprocess
import sys
import tempfile
import tomllib
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("mixer", "replay", "tasks")
PLUG_INS = """
from importlib.metadata import distribution
for entry in distribution("adaptive-mixer").entry_points:
    entry.load()
"""


def check_content(wheel: Path) -> None:
    """The wheel has every file of the packages that is under version control, its own notes, and nothing else."""
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=True)
    with zipfile.ZipFile(wheel) as archive:
        found = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert found == set(listed.stdout.split()), sorted(found ^ set(listed.stdout.split()))


def check_use(folder: Path) -> None:
    """Version, plug-ins and the README's quick start."""
    quick_start = (ROOT / "README.md").read_text().partition("## Quick start")[2].partition("\n## ")[0]
    (script,) = re.findall(r"```python\n(.+?)```", quick_start, re.DOTALL)
    (folder / "quick_start.py").write_text(script)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    mixer = str(Path(sys.executable).with_name("mixer"))

    def run(*words: str) -> str:
        done = subprocess.run(words, cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=True)
        return done.stdout

    place = Path(run(sys.executable, "-c", "import mixer; print(mixer.__file__)").strip())
    assert place.is_relative_to(sys.prefix), f"not the wheel, but {place}"
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run(mixer, "--version") == f"mixer {version}\n"
    run(sys.executable, "-c", PLUG_INS)
    run(sys.executable, "quick_start.py")
    commands = re.findall(r"(?m)^mixer ([^#\n]+)", quick_start)
    assert commands
    for words in commands:
        print(run(mixer, *words.split()))
    check_figures(quick_start, folder / "runs")


def check_figures(quick_start: str, runs: Path) -> None:
    """The README shows the figures of its quick start."""
    from mixer.tools.records.run import Run

    shown = re.findall(r"(?m)^(auto|Uniform) +loss of mirrors (\S+), (\S+) of", quick_start)
    assert {row[0] for row in shown} == {"auto", "Uniform"}
    for run, last_loss, samples in shown:
        mirrors = Run(runs / run).figures.loc["mirrors"]
        assert abs(mirrors["last_loss"] - float(last_loss)) < 0.1, run
        assert abs(mirrors["samples"] / int(samples.replace(",", "")) - 1) < 0.05, run


if __name__ == "__main__":
    check_content(Path(sys.argv[1]))
    with tempfile.TemporaryDirectory() as empty:
        check_use(Path(empty))
