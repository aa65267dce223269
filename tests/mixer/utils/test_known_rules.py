"""Schedules, selections and retrievals of other packages; policies are in tests/mixer/policies/test_registry.py."""

from importlib.metadata import EntryPoint

import pytest

from mixer.schedules import Constant, as_schedule
from mixer.utils import entry_points, known_rules
from mixer.utils.errors import InvalidValueError
from replay import ReplayBuffer
from replay.retrieval import Uniform, as_retrieval
from replay.selection import Ring, as_selection


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
    known_rules._plugged_in.cache_clear()
    assert type(convert(rule.__name__.lower())) is rule
    known_rules._plugged_in.cache_clear()
    entries.clear()
    with pytest.raises(InvalidValueError):
        convert(rule.__name__.lower())
    known_rules._plugged_in.cache_clear()
