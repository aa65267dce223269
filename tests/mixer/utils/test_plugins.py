import math
from collections.abc import Collection
from importlib.metadata import EntryPoint

import pytest

from mixer.utils import entry_points as plugins
from mixer.utils.entry_points import load_plug_ins


def _load(entry: EntryPoint, taken: Collection[str]) -> tuple[str, object]:
    if entry.name in taken:
        raise ValueError(f"{entry.name} is taken")
    return entry.name, entry.load()


@pytest.fixture(autouse=True)
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    values = [("own", "math:pi"), ("a", "math:pi"), ("a", "math:e"), ("lost", "math:lost"), ("b", "math:e")]
    monkeypatch.setattr(
        plugins, "entry_points", lambda group: [EntryPoint(name, value, group) for name, value in values]
    )


def test_what_is_broken_or_of_a_taken_name_is_named_and_left_out() -> None:
    with pytest.warns(UserWarning, match="is skipped") as warned:
        found = load_plug_ins("some.group", "thing", _load, ("own",))
    assert found == {"a": math.pi, "b": math.e}
    assert [str(warning.message) for warning in warned] == [
        "thing own of an unknown package is skipped (ValueError: own is taken).",
        "thing a of an unknown package is skipped (ValueError: a is taken).",
        "thing lost of an unknown package is skipped (AttributeError: module 'math' has no attribute 'lost').",
    ]


@pytest.mark.parametrize("stacklevel", [1, 2])
def test_warnings_point_at_who_asked(stacklevel: int) -> None:
    def ask() -> None:
        load_plug_ins("some.group", "thing", _load, ("own",), stacklevel)

    with pytest.warns(UserWarning, match="is skipped") as warned:
        ask()
    in_ask = ask.__code__.co_firstlineno + 1
    assert {warning.filename for warning in warned} == {__file__}
    assert {warning.lineno == in_ask for warning in warned} == {stacklevel == 1}
