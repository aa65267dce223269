import importlib
import re
from pathlib import Path

from benchmarks.commands import COMMANDS

ROOT = Path(__file__).parents[3]


def test_the_documents_name_benchmarks_that_there_are() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("*/*.md"),
        *ROOT.glob("docs/*/*.md"),
        ROOT / "Makefile",
        *ROOT.glob("benchmarks/**/*.py"),
    ]
    told = {name for page in pages for name in re.findall(r"-m benchmarks ([a-z]\w*)", page.read_text())}
    assert told <= set(COMMANDS)


def test_the_page_of_the_benchmarks_has_a_row_for_each_with_its_minutes() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text()
    rows = dict(re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \|([^|\n]+)\|", page))
    assert list(rows) == list(COMMANDS)
    for name, command in COMMANDS.items():
        assert rows[name].split()[:1] == ([] if command.minutes is None else [str(command.minutes)]), name


def test_every_benchmark_can_be_imported() -> None:
    # Even the quick forms take over five seconds each: `make quick-benchmarks` runs them before a release.
    for command in COMMANDS.values():
        assert callable(importlib.import_module(f"benchmarks.{command.module}").main)
