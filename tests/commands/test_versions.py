"""The versions that pyproject.toml, the constraints and the page of versions name are the same."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.version import Version

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "versions.md").read_text()
REQUIREMENTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]


def _pins(name: str) -> dict[str, str]:
    return dict(re.findall(r"(?m)^([\w.-]+)==(\S+)$", (ROOT / name).read_text()))


@pytest.mark.parametrize("package", ["transformers", "accelerate", "datasets", "tokenizers"])
def test_the_lower_bound_is_what_is_tested_as_the_lowest(package: str) -> None:
    (bound,) = [line.removeprefix(f"{package}>=") for line in REQUIREMENTS if line.startswith(f"{package}>=")]
    lowest = _pins("constraints-lowest.txt")[package]
    assert Version(lowest) == Version(bound)
    assert re.search(rf"\| {package} \| {re.escape(lowest)} \| {re.escape(_pins('constraints.txt')[package])} \|", PAGE)


def test_torch_is_the_same_in_both() -> None:
    assert _pins("constraints-lowest.txt")["torch"] == _pins("constraints.txt")["torch"]
    assert f"| torch | {_pins('constraints.txt')['torch']} |" in PAGE
