"""What the pages say of the code, and whether their links lead somewhere."""

import ast
import importlib
import inspect
import re
import shutil
import subprocess
import tomllib
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.version import Version
from transformers import LlamaConfig, LlamaForCausalLM, TrainingArguments

import mixer
import replay
import tasks
from docs.site import notebooks, pictures
from mixer.policies.registry import built_in_policies
from mixer.tools.cli.entry import main
from mixer.tools.recipe.fields import check_fields
from mixer.tools.recipe.recipe import Recipe
from tasks.text_domains import random_text
from tests.commands.recipes import LLAMA, QUIET, ROOT
from tests.helpers import run_page

PAGES = sorted(path for pattern in ("README.md", "docs/*.md", "docs/*/*.md") for path in ROOT.glob(pattern))
TUTORIALS = sorted(notebooks.FOLDER.glob("*.md"))


def test_the_page_of_policies_knows_every_one() -> None:
    page = (ROOT / "docs" / "policies.md").read_text()
    missing = [name for name in built_in_policies() if not re.search(rf"`{name}\b", page)]
    assert set(missing) <= {"Function"}


def test_links_within_the_documentation_lead_somewhere() -> None:
    lost, titles = [], {}
    for path in (path for pattern in ("*.md", "*/*.md", "docs/*/*.md") for path in ROOT.glob(pattern)):
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
    assert len(scripts) == 10
    for path in (ROOT / "recipes").glob("*.yaml"):
        assert f"]({path.name})" in page, path.name
        assert f"recipes/{path.name}" in page, path.name  # with its command
    for path in scripts - {ROOT / "examples" / "data.py"}:
        assert f"](../examples/{path.name})" in page, path.name
        assert f"python examples/{path.name}" in page, path.name
        assert "from examples" not in path.read_text(), path  # one file is all there is to copy


@pytest.mark.parametrize("page", ["extend", "extend_replay", "only_the_sampler"])
def test_a_page_on_ones_own_code_runs_as_it_stands(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run_page(page, tmp_path, monkeypatch)


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


def _code_of(page: Path) -> list[str]:
    return re.findall(r"```python\n(.+?)```", page.read_text(), re.DOTALL)


def _calls(code: str) -> Iterator[tuple[Any, ast.Call]]:
    """Finds calls of what the packages export, and imports everything that the code imports from them."""
    known = {name: value for package in (mixer, replay, tasks) for name, value in _exports(package)}
    for node in ast.walk(ast.parse(code)):
        if (
            isinstance(node, ast.ImportFrom)
            and node.module
            and node.module.split(".")[0] in ("mixer", "replay", "tasks")
        ):
            module = importlib.import_module(node.module)
            known |= {name.asname or name.name: getattr(module, name.name) for name in node.names}
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and inspect.isclass(known.get(node.func.id)):
            yield known[node.func.id], node


def _exports(package: Any) -> Iterator[tuple[str, Any]]:
    return ((name, getattr(package, name)) for name in package.__all__)


def test_pages_import_and_call_what_there_is() -> None:
    wrong = []
    for page in PAGES:
        for code in _code_of(page):
            if "from streaming import Stream" in code:  # another package's
                continue
            if "sentence_transformers" in code and find_spec("sentence_transformers") is None:  # an extra
                continue
            for called, call in _calls(code):
                parameters = inspect.signature(called).parameters
                open_ended = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
                unknown = {keyword.arg for keyword in call.keywords if keyword.arg} - set(parameters)
                if unknown and not open_ended:
                    wrong.append(f"{page.name}: {called.__name__} takes no {sorted(unknown)}")
    assert wrong == []


def test_recipes_that_stand_alone_have_fields_that_there_are() -> None:
    blocks = [
        block for page in PAGES for block in re.findall(r"```yaml\n(# mixer train.+?)```", page.read_text(), re.DOTALL)
    ]
    assert blocks
    for block in blocks:
        check_fields(Recipe, yaml.safe_load(block))


def test_the_first_snippet_trains(tmp_path: Path) -> None:
    snippet = _code_of(ROOT / "README.md")[0]
    math, code, web = (random_text(40, 24, 16, seed) for seed in range(3))
    names = {
        "model": LlamaForCausalLM(LlamaConfig(**LLAMA)),
        "args": TrainingArguments(str(tmp_path), max_steps=3, per_device_train_batch_size=6, **QUIET),
        "math": math["train"],
        "code": code["train"],
        "web": web["train"],
        "math_test": math["validation"],
        "code_test": code["validation"],
    }
    exec(snippet, names)  # noqa: S102
    assert set(names["trainer"].ledger.to_pandas()["stream"]) == {"math", "code", "web"}


def test_commands_of_the_pages_exist(capsys: pytest.CaptureFixture[str]) -> None:
    texts = "\n".join(page.read_text() for page in PAGES)
    targets = re.findall(r"(?m)^([\w-]+):", (ROOT / "Makefile").read_text())
    assert set(re.findall(r"(?:`|^)make ([\w-]+)", texts, re.MULTILINE)) <= set(targets)
    with pytest.raises(SystemExit):
        main(["--help"])
    known = capsys.readouterr().out
    named = set(re.findall(r"(?:`|^|-m )mixer ([a-z-]+)\b", texts, re.MULTILINE))
    assert {name for name in named if name not in known} == set()


def test_pictures_are_those_of_their_script() -> None:
    for name, picture in pictures.pictures().items():
        assert (pictures.FOLDER / name).read_text() == picture, "python -m docs.site.pictures"


@pytest.mark.parametrize("page", TUTORIALS, ids=lambda page: page.stem)
def test_a_tutorial_is_a_page_and_a_notebook_of_the_same_cells(page: Path) -> None:
    cells = notebooks.cells_of(page.read_text())
    assert notebooks.page_of(cells) == page.read_text()
    assert notebooks.notebook_of(cells) == page.with_suffix(".ipynb").read_text(), "python -m docs.site.notebooks"


RUN = [
    pytest.param(page, marks=[pytest.mark.full, *([pytest.mark.weights] if "smollm2" in page.read_text() else [])])
    for page in TUTORIALS
]


@pytest.mark.parametrize("page", RUN, ids=[page.stem for page in TUTORIALS])
def test_a_notebook_runs_from_top_to_bottom_and_prints_what_its_page_shows(page: Path) -> None:
    cells = notebooks.cells_of_notebook(page.with_suffix(".ipynb").read_text())
    number = re.compile(r"[\d.,]*\d")
    for shown, cell in zip(cells, notebooks.run(cells), strict=True):
        assert number.sub("0", cell.output).split() == number.sub("0", shown.output).split()
        found, expected = (
            [float(text.replace(",", "")) for text in number.findall(one.output)] for one in (cell, shown)
        )
        assert found == pytest.approx(expected, rel=0.25, abs=0.15)


@pytest.mark.full
def test_the_demo_runs_as_make_runs_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = subprocess.run(
        ["/usr/bin/env", "make", "-n", "demo"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout
    commands = re.findall(r"(?m)^.*?(?:-m |/)mixer ((?:train|compare|report) .+)$", made)
    assert [command.split()[0] for command in commands] == ["train", "train", "train", "compare", "report"]
    monkeypatch.chdir(tmp_path)
    short = ["--training.max_steps", "2", "--training.eval_on_start", "false", "--batch_size", "8"]
    short += ["--training.eval_strategy", "no"]
    for command in commands:
        words = command.replace("recipes/", f"{ROOT}/recipes/").split()
        if words[-1] == "Proportional":  # as Uniform but for the name
            shutil.copytree("runs/demo/uniform", "runs/demo/proportional")
        else:
            main(words + short * (words[0] == "train"))
    assert (tmp_path / "runs" / "demo" / "report.html").exists()


def test_the_extra_all_joins_every_part_but_those_that_are_named_apart() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (joined,) = re.findall(r"^adaptive-mixer\[(.+)\]$", extras["all"][0])
    apart = {"all", "conflict-solvers", "deepspeed", "dev", "docs", "liger", "lm-eval", "ray", "weights"}
    assert {*joined.split(",")} == extras.keys() - apart
