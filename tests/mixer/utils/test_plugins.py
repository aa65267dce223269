"""Schedules, selections and retrievals of other packages; policies are in tests/mixer/policies/test_registry.py."""

import math
from collections.abc import Collection
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mixer.schedules import Constant, as_schedule
from mixer.utils import entry_points, entry_points as plugins, registry
from mixer.utils.entry_points import load_plug_in, load_plug_ins, summarised
from mixer.utils.errors import InvalidValueError
from replay import ReplayBuffer
from replay.retrieval import Uniform, as_retrieval
from replay.selection import Ring, as_selection
from tests.refusals import refused


def _load(entry: EntryPoint, taken: Collection[str]) -> tuple[str, object]:
    if entry.name in taken:
        raise ValueError(f"{entry.name} is taken")
    return entry.name, entry.load()


@pytest.mark.parametrize("stacklevel", [1, 2])
def test_what_is_broken_or_taken_is_named_and_left_out(stacklevel: int, monkeypatch: pytest.MonkeyPatch) -> None:
    values = [("own", "math:pi"), ("a", "math:pi"), ("a", "math:e"), ("lost", "math:lost"), ("b", "math:e")]
    entries = [EntryPoint(name, value, "some.group") for name, value in values]
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries)

    def ask() -> dict[str, object]:
        return load_plug_ins("some.group", "thing", _load, ("own",), stacklevel)

    with pytest.warns(UserWarning, match="is skipped") as warned:
        assert ask() == {"a": math.pi, "b": math.e}
    assert [str(warning.message) for warning in warned] == [
        "thing own of an unknown package is skipped (ValueError: own is taken).",
        "thing a of an unknown package is skipped (ValueError: a is taken).",
        "thing lost of an unknown package is skipped (AttributeError: module 'math' has no attribute 'lost').",
    ]
    assert {warning.filename for warning in warned} == {__file__}
    in_ask = ask.__code__.co_firstlineno + 1
    assert {warning.lineno == in_ask for warning in warned} == {stacklevel == 1}


def test_a_factory_is_summarised_without_its_import(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = 'raise ImportError("no strings")\ndef play() -> None:\n    """Play a tune.\n\n    Loud.\n    """\n'
    (tmp_path / "unplayable.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    entries = {name: EntryPoint(name, f"unplayable:{name}", "some.group") for name in ("play", "pause")}
    assert [summarised(entry, (), "thing") for entry in entries.values()] == [("play", "Play a tune"), ("pause", "")]
    with refused("thing"):
        summarised(entries["play"], ("play",), "thing")
    with pytest.raises(ModuleNotFoundError):
        summarised(EntryPoint("lost", "lost:lost", "some.group"), (), "thing")
    monkeypatch.setattr(plugins, "entry_points", lambda group: entries.values())
    with refused("thing"):
        load_plug_in("some.group", "thing", "play", object)


class Brief(Constant):
    """Of another package."""


class Newest(Ring):
    """Likewise."""


class Even(Uniform):
    """Likewise."""


@pytest.mark.parametrize(
    ("kinds", "rule", "convert"),
    [
        ("schedules", Brief, as_schedule),
        ("selections", Newest, as_selection),
        ("retrievals", Even, as_retrieval),
        ("selections", Newest, lambda name: ReplayBuffer(3, name).selection),
    ],
)
def test_a_rule_of_another_package_is_known_by_name_through_an_entry_point(kinds, rule, convert, monkeypatch) -> None:
    entries = {f"adaptive_mixer.{kinds}": [EntryPoint("any", f"{__name__}:{rule.__name__}", "")]}
    monkeypatch.setattr(entry_points, "entry_points", lambda group: entries.get(group, []))
    registry._plugged_in.cache_clear()
    assert type(convert(rule.__name__.lower())) is rule
    registry._plugged_in.cache_clear()
    entries.clear()
    with pytest.raises(InvalidValueError):
        convert(rule.__name__.lower())
    registry._plugged_in.cache_clear()
