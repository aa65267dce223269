"""Which code a kept result of a policy comes from."""

from pathlib import Path

import pytest

from benchmarks.quality.cache import Run
from benchmarks.quality.code import definitions_of, reached, text_of
from benchmarks.quality.family import Purpose, names
from benchmarks.quality.scenarios import Scenario

RULE = "from {package}.shared import halved\n\n\ndef rule(value):\n    return halved(value)\n"
SHARED = """_HALF = 0.5


def halved(value):
    print('half of it')
    return _HALF * value


def other():
    return 1
"""


def test_results_of_auto_come_from_all_that_it_uses() -> None:
    modules = {module.removeprefix("mixer.") for module, _ in definitions_of("auto")}
    assert modules >= {f"policies.shared.{name}" for name in ("harm", "agreement", "repeated")}
    assert modules >= {"policies.marginal_value", "policies.wrappers.safeguard", "gradients.metric"}
    assert modules >= {"measurements.alignment", "measurements.hooks.target_gradients"}
    assert not modules & {"policies.contract", "policies.pike", "measurements.hooks.stream_gradients"}


@pytest.mark.parametrize("purpose", ["judging", "small_judging"])
def test_figures_of_auto_in_the_readme_come_from_the_code_of_today(purpose: Purpose, tmp_path: Path) -> None:
    runs = [Run(Scenario(name, "small"), "auto", "auto", {}, seed) for name in names(purpose) for seed in (11, 12, 13)]
    assert [run for run in runs if run.result(tmp_path) is None] == []


def test_results_of_fixed_shares_come_from_the_function_that_they_use_alone() -> None:
    assert [name for _, name in definitions_of("Fixed")] == ["Fixed", "shares", "StaticPolicy"]


@pytest.mark.parametrize(
    ("name", "old", "new", "changes"),
    [
        ("shared", "_HALF = 0.5", "_HALF = 0.4", True),
        ("shared", "return 1", "return 2", False),
        ("shared", "    print", '    """Halves."""\n    print', False),
        ("shared", "halved(value)", "halved(value: float) -> float", False),
        ("shared", "half of it", "a half of it", False),
        ("rule", "return halved(value)", "return halved(value)  # by two", False),
        ("rule", "return halved(value)", "return -halved(value)", True),
    ],
)
def test_code_that_is_used_counts_without_what_is_said_of_it(
    name: str, old: str, new: str, changes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for package, is_changed in ((f"{tmp_path.name}_before", False), (f"{tmp_path.name}_after", True)):
        (tmp_path / package).mkdir()
        files = {"__init__": "", "rule": RULE.format(package=package), "shared": SHARED}
        for file, text in files.items():
            own = text.replace(old, new) if is_changed and file == name else text
            (tmp_path / package / f"{file}.py").write_text(own)
        names = reached([(f"{package}.rule", "rule")], [package], [])
        assert len(names) == 3
        found.append(text_of(sorted(names)))
    assert (found[0] != found[1]) == changes
