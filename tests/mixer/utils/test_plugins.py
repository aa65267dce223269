import math
from collections.abc import Collection
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from mixer.utils import entry_points as plugins
from mixer.utils.entry_points import load_plug_in, load_plug_ins, summarised
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
