"""What the pages say of the code, and whether their links lead somewhere."""

import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

from mixer.cli.entry import main
from mixer.ledger.summary import summarise
from mixer.policies.registry import built_in_policies
from tests.commands.recipes import ROOT


def test_the_page_that_helps_to_choose_knows_every_policy() -> None:
    page = (ROOT / "docs" / "choosing_a_policy.md").read_text()
    own = {"Scheduled", "Function"}  # weights that their user gives, as `Fixed` does
    missing = [name for name in built_in_policies() if not re.search(rf"`(MixingTrainer\(mixing=)?{name}\b", page)]
    assert set(missing) <= own


def test_links_within_the_documentation_lead_somewhere() -> None:
    lost, titles = [], {}
    for path in (path for pattern in ("*.md", "*/*.md") for path in ROOT.glob(pattern)):
        for target in re.findall(r"\]\((?!https?:)([^)]+)\)", path.read_text()):
            file, _, anchor = target.partition("#")
            linked = (path.parent / file).resolve() if file else path
            if linked not in titles and linked.suffix == ".md" and linked.exists():
                found = re.findall(r"(?m)^#+ (.+)$", linked.read_text())
                titles[linked] = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in found]
            if not linked.exists() or (anchor and anchor not in titles[linked]):
                lost.append(f"{path.relative_to(ROOT)}: {target}")
    assert lost == []


def test_the_page_of_recipes_knows_every_recipe_and_script() -> None:
    page = (ROOT / "recipes" / "README.md").read_text()
    scripts = {path for path in (ROOT / "examples").glob("*.py") if "__main__" in path.read_text()}
    assert len(scripts) == 6
    for path in (ROOT / "recipes").glob("*.yaml"):
        assert f"]({path.name})" in page, path.name
        assert f"recipes/{path.name}" in page, path.name  # with its command
    for path in scripts - {ROOT / "examples" / "data.py"}:
        assert f"](../examples/{path.name})" in page, path.name
        assert f"python examples/{path.name}" in page, path.name
        assert "from examples" not in path.read_text(), path  # one file is all there is to copy


@pytest.mark.parametrize("page", ["own_loop", "gradients"])
def test_a_loop_of_ones_own_runs_as_it_stands(page: str) -> None:
    blocks = re.findall(r"```python\n(.+?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    (loop,) = [block for block in blocks if "MixingDataLoader" in block]
    exec(loop, {})  # noqa: S102


def test_versions_are_the_same_wherever_they_are_named() -> None:
    named, page = tomllib.loads((ROOT / "pyproject.toml").read_text()), (ROOT / "docs" / "versions.md").read_text()
    bounds = dict(line.split(">=") for line in named["project"]["dependencies"] if line.count("=") == 1)
    lowest, pinned = (
        dict(re.findall(r"(?m)^([\w.-]+)==(\S+)$", (ROOT / name).read_text()))
        for name in ("constraints-lowest.txt", "constraints.txt")
    )
    for package in ("transformers", "accelerate", "datasets", "tokenizers"):
        assert Version(lowest[package]) == Version(bounds[package])
        assert f"| {package} | {lowest[package]} | {pinned[package]} |" in page
    assert lowest["torch"] == pinned["torch"]
    assert f"| torch | {pinned['torch']} |" in page


@pytest.mark.full
def test_the_quick_start_trains_a_mixture_that_can_be_looked_at(tmp_path: Path) -> None:
    section = (ROOT / "README.md").read_text().partition("## Quick start")[2].partition("\n## ")[0]
    (script,) = re.findall(r"```python\n(.+?)```", section, re.DOTALL)
    commands = re.findall(r"(?m)^mixer (\w+) (\S+)", section)
    assert commands == [("compare", "runs/quick_start"), ("report", "runs/quick_start")]
    (tmp_path / "quick_start.py").write_text(script)
    subprocess.run([sys.executable, "quick_start.py"], cwd=tmp_path, check=True, timeout=300)
    main(["report", str(tmp_path / "runs" / "quick_start")])
    assert (tmp_path / "runs" / "quick_start" / "report.html").exists()
    streams = summarise(tmp_path / "runs" / "quick_start").streams
    printed = {row[0]: row[1:] for row in re.findall(r"│ (sums|mirrors) +│ +\S+ → (\S+) │ +(\S+) │", section)}
    assert set(streams.index) == set(printed)
    for name, (last_loss, samples) in printed.items():
        assert streams.loc[name, "last_loss"] == pytest.approx(float(last_loss), abs=0.1)
        assert streams.loc[name, "samples"] == pytest.approx(int(samples.replace(",", "")), rel=0.05)
