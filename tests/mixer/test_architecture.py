"""Imports point one way: tasks -> replay -> mixer, and downward inside each package."""

import ast
import doctest
import functools
import importlib
import subprocess
import sys
import tomllib
from importlib.util import find_spec
from pathlib import Path

import pytest

import mixer
from mixer.measurements import BY_NAME
from mixer.policies import policy_classes
from mixer.schedules import schedule_classes
from mixer.utils.registry import built_in_rules
from replay.retrieval import retrieval_classes
from replay.selection import selection_classes

ROOT = Path(__file__).parents[2]
PLUG_INS = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["entry-points"][
    "adaptive_mixer.policies"
]
# Rooms from the ground up: a room imports rooms below it. Several between two bars do not know each other.
ROOMS = {
    "mixer": "utils|measurements|distributed schedules|policies|mixture|models|gradients|loading|ledger|run"
    "|checkpoint losses|measurements.hooks|trainer.checks trainer.evaluation|trainer"
    "|trainer.trl trainer.sentence_transformers trainer.grpo"
    "|tools.console|tools.records|tools.report|tools.recipe|tools.analysis|tools.cli",
    "replay": "storage shared generation|selection retrieval policies|memory|feeding|second_draw|buffer|methods",
    "tasks": "sources mlp text_domains task_folders|task chats|heads sequences generation chats_of_files texts"
    "|score metrics|harness methods|continual|tools.report|tools.recipe tools.set_ups|tools.runs|tools.table"
    "|tools.command",
}
LEVELS = {
    (package, room): (height, level)
    for height, (package, levels) in enumerate(ROOMS.items())
    for level, rooms in enumerate(levels.split("|"))
    for room in rooms.split()
}
MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts)
    for package in ROOMS
    for path in (ROOT / package).rglob("*.py")
)
# What reads files of data reads them as recipes do. Nothing else outside of the tools imports a tool.
READING_FILES = {(("tasks", room), ("mixer", "tools.recipe")) for room in ("sources", "sequences")}
# These see every room.
FACES = {f"{package}.{name}" for package in ROOMS for name in ("__init__", "__main__")} | {"mixer.trainer.__init__"}


@functools.cache
def _nodes(module: str) -> list[ast.AST]:
    """The imports and calls of a module."""
    tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8"))
    return [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom | ast.Call)]


@functools.cache
def _imports(module: str) -> set[str]:
    found: set[str] = set()
    for node in _nodes(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: imports are absolute"
            found.add(node.module or "")
    return {name for name in found if name.split(".")[0] in (*ROOMS, "benchmarks")}


def _named(module: str) -> set[str]:
    """Modules of other rooms that are imported by a name in a string."""
    calls = [node for node in _nodes(module) if isinstance(node, ast.Call)]
    calls = [call for call in calls if "import_module" in (getattr(call.func, name, "") for name in ("attr", "id"))]
    names = {str(part.value) for call in calls for part in call.args if isinstance(part, ast.Constant)}
    names = {name.partition(":")[0] for name in names}
    return {name for name in names if name.split(".")[0] in ROOMS and _room(name) != _room(module)}


def _room(module: str) -> tuple[str, str]:
    package, *rest = module.split(".")
    within = ".".join(rest[:2])
    if rest[:1] == ["tools"]:
        return package, within if rest[1:] not in ([], ["__init__"]) else "tools"
    if (package, within) in LEVELS:
        return package, within
    return package, rest[0] if rest else "__init__"


def _is_tool(room: tuple[str, str]) -> bool:
    return room[1].split(".")[0] == "tools"


def test_rooms_import_only_rooms_below_them() -> None:
    wrong = []
    for module in set(MODULES) - FACES:
        own = _room(module)
        for imported in _imports(module) | _named(module):
            other = _room(imported)
            is_below = other in LEVELS and LEVELS[other] < LEVELS[own]
            is_below = is_below and (not _is_tool(other) or _is_tool(own) or (own, other) in READING_FILES)
            is_face = other[1] == "__init__" and other[0] in ROOMS and other[0] != own[0]
            if not (is_below or other == own or (is_face and list(ROOMS).index(other[0]) < LEVELS[own][0])):
                wrong.append(f"{module} (room {'/'.join(own)}) imports {imported} (room {'/'.join(other)})")
    assert not wrong, "A room imports only rooms below it:\n" + "\n".join(sorted(wrong))


def test_the_core_names_no_tool_in_any_way() -> None:
    cores = [module for module in set(MODULES) - FACES if not _is_tool(_room(module))]
    texts = {module: (ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8") for module in cores}
    reading = {room for room, _ in READING_FILES}
    naming = {module for module, text in texts.items() if ".tools" in text and _room(module) not in reading}
    assert naming == set()


def test_every_room_has_its_place_and_says_what_it_is_for() -> None:
    assert {_room(module) for module in set(MODULES) - FACES} == {*LEVELS, ("mixer", "tools"), ("tasks", "tools")}
    folders = {path.parent for package in ROOMS for path in (ROOT / package).rglob("*.py")}
    for folder in folders:
        docstring = ast.get_docstring(ast.parse((folder / "__init__.py").read_text(encoding="utf-8")))
        assert docstring, f"{folder}/__init__.py does not say what it is for"


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


@pytest.mark.full
def test_examples_in_docstrings_run() -> None:
    needs = {  # extras
        "mixer.trainer.trl.sft": "trl",
        "mixer.trainer.sentence_transformers.trainers": "sentence_transformers",
        "mixer.ledger.progress.notebook": "IPython",
    }
    failed = []
    for name in MODULES:
        if ">>> " not in (ROOT / (name.replace(".", "/") + ".py")).read_text(encoding="utf-8"):
            continue
        if name not in needs or find_spec(needs[name]) is not None:
            module = importlib.import_module(name.removesuffix(".__init__"))
            failed += [name] * doctest.testmod(module).failed
    assert failed == []


@pytest.mark.parametrize("name", ["mixer", "replay", "tasks"])
def test_names_that_are_imported_when_they_are_asked_for_are_all_there(name: str) -> None:
    package = importlib.import_module(name)
    assert set(package.__all__) <= set(dir(package))
    assert all(hasattr(package, exported) for exported in package.__all__)
    with pytest.raises(AttributeError, match=f"module '{name}' has no attribute 'nothing'"):
        package.nothing  # noqa: B018


RULES = {
    "mixer.policies": (policy_classes, "contract objective registry"),
    "mixer.schedules": (schedule_classes, "base limits registry"),
    "replay.selection": (selection_classes, "base"),
    "replay.retrieval": (retrieval_classes, "base"),
}


@pytest.mark.parametrize("package", RULES)
def test_a_file_of_a_rule_and_its_import_are_all_that_a_built_in_rule_needs(package: str) -> None:
    classes, others = RULES[package]
    folders = [folder for name in ("", "/wrappers") if (folder := ROOT / (package.replace(".", "/") + name)).is_dir()]
    files = [path.relative_to(ROOT) for folder in folders for path in folder.glob("*.py")]
    names = {".".join(path.with_suffix("").parts) for path in files if path.stem not in ("__init__", *others.split())}
    own = {name: rule for name, rule in classes().items() if rule.__module__.startswith(f"{package}.")}
    assert {rule.__module__ for rule in own.values()} == names
    assert package != "mixer.policies" or {name: getattr(mixer, name) for name in own if name in mixer.__all__} == own


def test_the_policies_of_replay_are_entry_points_of_the_package() -> None:
    found = {name: f"replay.policies:{name}" for name in built_in_rules("replay.policies", mixer.Policy)}
    assert found == PLUG_INS


def test_a_schedule_knows_nothing_of_the_rest() -> None:
    known = {
        f"mixer.utils.{name}"
        for name in ("errors", "ranges", "recorded_arguments", "registry", "saved_state", "validation")
    }
    imported = {name for module in MODULES if module.startswith("mixer.schedules.") for name in _imports(module)}
    below = ("mixer.schedules.", "mixer.measurements")
    assert {name for name in imported - known if not name.startswith(below)} == set()


def test_a_measurement_stands_in_its_file_an_import_and_its_hook() -> None:
    """And in the rules that ask for it."""
    files: dict[str, set[str]] = {kind.__name__: set() for kind in BY_NAME.values()}
    for module in (name for name in MODULES if name.startswith("mixer.") and not _is_tool(_room(name))):
        tree = ast.parse((ROOT / (module.replace(".", "/") + ".py")).read_text(encoding="utf-8"))
        names = {getattr(node, key, None) for node in ast.walk(tree) for key in ("id", "attr", "name")}
        for name in files.keys() & names if _room(module)[1] not in ("policies", "schedules") else ():
            files[name].add(module)
    assert {name: sorted(found) for name, found in files.items() if len(found) > 3} == {}


def test_no_folder_of_tests_is_left_out() -> None:
    """The Makefile names them one by one, for their order."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    lists = [line for line in makefile.splitlines() if line.startswith(("OF_PROCESSES :=", "IN_ONE_PROCESS :="))]
    listed = [folder for line in lists for folder in line.split()[2:]]
    found = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert {path for path in found if not path.startswith(tuple(f"{folder}/" for folder in listed))} == set()
    assert len(listed) == len(set(listed))


def test_mixtures_are_planned_without_torch() -> None:
    modules = [name for name in MODULES if name.startswith(("mixer.mixture.", "mixer.policies.", "mixer.schedules."))]
    code = f"import sys, {', '.join(modules)}; print({{'torch', 'transformers'}} & {{*sys.modules}})"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
