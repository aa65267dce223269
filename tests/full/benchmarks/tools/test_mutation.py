"""Mutants: what is changed, and that whoever imported a function has the mutant."""

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("mutmut", reason="the package `mutmut` is not installed")

from benchmarks.tools.mutation.mutants import Mutant, mutants_of
from benchmarks.tools.mutation.source_in_place import put_in

SOURCE = '''"""A module."""

from contextlib import contextmanager
from functools import cached_property

Numbers = list[int]
LIMIT = 3
NAMES = {"a": 1}


def double(x: int = 1) -> int:
    """Twice."""
    if x > LIMIT:
        raise ValueError("too much")
    return x * 2


class Sum:
    least: int = 5

    @property
    def half(self) -> float:
        return self.least / 2

    @cached_property
    def whole(self) -> int:
        return self.least + 1

    @classmethod
    def made(cls) -> "Sum":
        return cls()

    @contextmanager
    def held(self):
        yield self.least - 7
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "a_mutated_module.py").write_text(SOURCE)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("a_mutated_module")
    del sys.modules["a_mutated_module"]


def mutants(module: ModuleType) -> list[Mutant]:
    return mutants_of(module.__name__, Path(str(module.__file__)))


def test_code_is_changed_and_not_what_it_says(module: ModuleType) -> None:
    changes = [mutant.change for mutant in mutants(module) if mutant.source() is not None]
    expected = {
        "3 -> 4",
        "> LIMIT -> >= LIMIT",
        "x * 2 -> x / 2",
        "2 -> 3",
        "self.least / 2 -> self.least * 2",
        "1 -> 2",
    }
    assert expected <= set(changes)
    assert not [change for change in changes if "too much" in change and "None" not in change]
    assert not [change for change in changes if "Numbers" in change or "A module" in change or "Twice" in change]


def test_each_knows_the_function_that_it_is_in(module: ModuleType) -> None:
    lines = {mutant.change: mutant.lines for mutant in mutants(module)}
    assert lines["3 -> 4"] is None
    assert lines["x * 2 -> x / 2"] == (11, 15)
    assert lines["self.least / 2 -> self.least * 2"] == (21, 23)


def test_whoever_imported_it_has_the_mutant(module: ModuleType) -> None:
    double, kept, names = module.double, module.Sum, module.NAMES
    put_in(module, SOURCE.replace("x * 2", "x * 3").replace("x: int = 1", "x: int = 2"))
    assert (double(), double(1)) == (6, 3)
    put_in(module, SOURCE.replace("/ 2", "* 2").replace("+ 1", "+ 9").replace("least: int = 5", "least: int = 6"))
    assert (kept().half, kept().whole, type(kept.made())) == (12, 15, kept)
    put_in(module, SOURCE.replace("- 7", "+ 7"))
    with kept().held() as found:
        assert found == 12
    put_in(module, SOURCE.replace("LIMIT = 3", "LIMIT = 0").replace('"a": 1', '"a": 2'))
    with pytest.raises(ValueError, match="too much"):
        double()
    assert (names, module.Sum is kept, module.double is double) == ({"a": 2}, True, True)
