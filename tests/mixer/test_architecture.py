"""Imports point one way: tasks -> replay -> mixer, and downward inside each package."""

import ast
import doctest
import importlib
import pkgutil
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
RANKS = {"mixer": 0, "replay": 1, "tasks": 2, "benchmarks": 3}
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ("mixer", "replay", "tasks")
    for path in (ROOT / package).rglob("*.py")
)


def _imports(module: str) -> set[str]:
    path = ROOT / (module.replace(".", "/") + ".py")
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            found.add(node.module or "")
    return {name for name in found if name.split(".")[0] in RANKS}


@pytest.mark.parametrize("module", MODULES)
def test_a_package_imports_only_packages_below_it(module: str) -> None:
    own = RANKS[module.split(".")[0]]
    assert all(RANKS[name.split(".")[0]] <= own for name in _imports(module))


def test_no_two_modules_import_each_other_however_far_apart() -> None:
    modules = {module.removesuffix(".__init__"): _imports(module) for module in MODULES}
    done: set[str] = set()

    def visit(name: str, path: tuple[str, ...]) -> None:
        assert name not in path, f"import cycle: {' -> '.join((*path, name))}"
        if name in done or name not in modules:
            return
        for imported in modules[name]:
            visit(imported, (*path, name))
        done.add(name)

    for name in modules:
        visit(name, ())


def _gathered_by_none(package: str) -> list[str]:
    gathering = (f"{package}.__init__", f"{package}.registry")
    return [name for name in MODULES if name.startswith(f"{package}.") and name not in gathering]


# What every policy sees and gives back: read once for all of them.
CONTRACT = {"mixer.policies.base", "mixer.gradient_statistics"}
# What many rules share, each of a single idea: read once as well.
SHARED = {
    f"mixer.policies.{name}"
    for name in ("acts_on", "least_share", "plain", "ranges", "slopes", "softmax", "static", "wrapper")
}


@pytest.mark.parametrize(
    ("module", "most"),
    [(name, 200) for name in _gathered_by_none("mixer.policies")]
    # A schedule brings its bounds with it, which a mixture has none of.
    + [(name, 600) for name in _gathered_by_none("mixer.schedules")],
)
def test_a_rule_needs_little_code(module: str, most: int) -> None:
    needed, waiting = set(), [module]
    while waiting:
        name = waiting.pop()
        if name not in needed:
            needed.add(name)
            waiting += [imported for imported in _imports(name) if imported in MODULES]
    if "mixer.policies.stream_average" in needed:
        most += 400  # a rule on gradients brings the smoothing of what it divides by with it
    if "mixer.policies.interactions" in needed:
        most += 120  # a rule that plans probes of its own brings their phases with it
    rule = needed - CONTRACT - (SHARED - {module})
    lines = sum(len((ROOT / (name.replace(".", "/") + ".py")).read_text().splitlines()) for name in rule)
    assert lines < most


@pytest.mark.parametrize("module", [name.removesuffix(".__init__") for name in MODULES if "__main__" not in name])
def test_examples_in_docstrings_run(module: str) -> None:
    assert doctest.testmod(importlib.import_module(module)).failed == 0


def test_every_public_policy_is_exported_and_registered() -> None:
    import mixer
    from mixer import policies
    from mixer.policies.registry import built_in_policies

    names = [info.name for info in pkgutil.iter_modules(policies.__path__)]
    assert {"uniform", "fixed", "loss_change"} <= set(names)
    for name in built_in_policies():
        assert name in policies.__all__
        assert name in mixer.__all__


def test_every_public_schedule_is_exported_and_has_a_file_of_its_own() -> None:
    from mixer import schedules

    modules = {info.name for info in pkgutil.iter_modules(schedules.__path__)}
    for name, schedule in schedules.schedule_classes().items():
        assert name in schedules.__all__
        own = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name).lstrip("_")
        assert own in modules
        assert schedule.__module__ == f"mixer.schedules.{own}"


@pytest.mark.parametrize("module", [name for name in MODULES if name.startswith("mixer.schedules.")])
def test_a_schedule_knows_nothing_of_the_rest(module: str) -> None:
    assert all(name.startswith("mixer.schedules.") or name == "mixer.choices" for name in _imports(module))
