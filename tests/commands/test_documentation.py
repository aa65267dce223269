"""What the pages say of the code, and whether their links lead somewhere."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from mixer.cli.entry import main
from mixer.ledger.summary import summarise
from mixer.policies.registry import built_in_policies

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "choosing_a_policy.md"
PAGES = [
    path.relative_to(ROOT).as_posix()
    for pattern in ("*.md", "*/*.md")
    for path in ROOT.glob(pattern)
    if not path.parts[-2].startswith(".")
]


@pytest.mark.parametrize("name", built_in_policies())
def test_the_page_that_helps_to_choose_knows_every_policy(name: str) -> None:
    if name in ("Scheduled", "Function"):  # weights that their user gives, as `Fixed` does
        return
    assert re.search(rf"`(MixingTrainer\(mixing=)?{name}\b", PAGE.read_text())


@pytest.mark.parametrize("path", PAGES)
def test_links_within_the_documentation_lead_somewhere(path: str) -> None:
    page = ROOT / path
    for target in re.findall(r"\]\((?!https?:)([^)]+)\)", page.read_text()):
        file, _, anchor = target.partition("#")
        linked = (page.parent / file).resolve() if file else page
        assert linked.exists(), target
        if anchor:
            titles = re.findall(r"(?m)^#+ (.+)$", linked.read_text())
            anchors = [re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles]
            assert anchor in anchors, target


def test_the_page_of_recipes_knows_every_recipe_and_script() -> None:
    root = PAGE.parents[1]
    page = (root / "recipes" / "README.md").read_text()
    scripts = {path for path in (root / "examples").glob("*.py") if "__main__" in path.read_text()}
    assert len(scripts) == 6
    for path in [*(root / "recipes").glob("*.yaml"), *scripts - {root / "examples" / "data.py"}]:
        linked = path.name if path.suffix == ".yaml" else f"../examples/{path.name}"
        assert f"]({linked})" in page, path.name
        assert path.suffix == ".py" or f"recipes/{path.name}" in page, path.name  # with its command
        assert path.suffix == ".yaml" or f"python examples/{path.name}" in page, path.name


@pytest.mark.parametrize("path", sorted((PAGE.parents[1] / "recipes").glob("*.yaml")), ids=lambda path: path.stem)
def test_recipes_on_the_data_of_the_examples_say_what_to_change(path: Path) -> None:
    text = path.read_text()
    assert text.startswith("# ")
    assert "# For the real thing: " in text or "examples" not in text


@pytest.mark.parametrize("path", sorted((PAGE.parents[1] / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_scripts_say_how_they_run_here_and_what_to_change(path: Path) -> None:
    text = path.read_text()
    if "MixingTrainer" in text or "ContinualRun" in text or "MixingSFTTrainer" in text:
        assert f"python examples/{path.name}" in text
        assert "For the real thing: " in text
        assert "from examples" not in text  # one file is all there is to copy


@pytest.mark.parametrize("page", ["own_loop", "gradients"])
def test_a_loop_of_ones_own_runs_as_it_stands(page: str) -> None:
    blocks = re.findall(r"```python\n(.+?)```", (ROOT / "docs" / f"{page}.md").read_text(), re.DOTALL)
    (loop,) = [block for block in blocks if "MixingDataLoader" in block]
    exec(loop, {})  # noqa: S102


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
