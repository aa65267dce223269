import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint
from typing import Any

import numpy as np
import pytest

from mixer.policies import Fixed, Function, LossChange, Proportional, Uniform, WarmUp
from mixer.policies.registry import as_policy, built_in_policies, policy_classes
from mixer.utils import entry_points as plugins, registry
from tests.mixer.policies.observed import mixture
from tests.refusals import refused


class Twice(Uniform):
    """Of another package."""


class TestPlugIns:
    @pytest.fixture(autouse=True)
    def _installed(self, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
        self.values: dict[str, str] = {}
        self.num_asked = 0
        monkeypatch.setattr(plugins, "entry_points", self.entry_points)
        registry._plugged_in.cache_clear()
        yield
        registry._plugged_in.cache_clear()

    def entry_points(self, group: str) -> list[EntryPoint]:
        assert group == "adaptive_mixer.policies"
        self.num_asked += 1
        return [EntryPoint(name, value, group) for name, value in self.values.items()]

    def test_policies_of_other_packages_are_looked_up_once_and_known_by_name(self) -> None:
        self.values = {"Twice": f"{__name__}:Twice", "ReplayRatio": "replay.policies:ReplayRatio"}
        assert [*policy_classes()] == [*built_in_policies(), "Twice", "ReplayRatio"]
        assert isinstance(as_policy("twice"), Twice)
        assert as_policy("replay_ratio").name == "ReplayRatio(Fixed)"
        assert self.num_asked == 1

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            ("no_such_package:Lost", "ModuleNotFoundError: No module named 'no_such_package'"),
            (f"{__name__}:mixture", "is no class of policies; derive it from Policy"),
            ("mixer.policies:Uniform", "there already is a policy Uniform"),
        ],
    )
    def test_a_broken_one_is_named_and_left_out(self, value: str, reason: str) -> None:
        self.values = {"Broken": value, "Twice": f"{__name__}:Twice"}
        with pytest.warns(UserWarning, match=rf"policy Broken of an unknown package is skipped \(.*{reason}"):
            classes = policy_classes()
        assert [*classes] == [*built_in_policies(), "Twice"]
        assert classes["Uniform"] is Uniform
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            policy_classes()  # it has been said


def test_a_name_is_a_policy() -> None:
    kinds = [type(as_policy(name)) for name in ("PROPORTIONAL", "loss_change", "loss-change")]
    assert kinds == [Proportional, LossChange, LossChange]


@pytest.mark.parametrize(
    "mixing", [{"b": 1, "a": 3}, [3, 1], (0.75, 0.25), np.array([6.0, 2.0]), lambda step, weights: [3, 1]]
)
def test_weights_by_name_or_in_order_and_functions_are_policies(mixing: Any) -> None:
    policy = as_policy(mixing)
    assert type(policy) is (Function if callable(mixing) else Fixed)
    assert policy.start(mixture([1, 1])).weights.tolist() == [0.75, 0.25]
    assert as_policy(policy) is policy


@pytest.mark.parametrize(
    ("mixing", "error"),
    [
        ("unifrom", ValueError),
        ("Scheduled", ValueError),
        (WarmUp, TypeError),
        *[(mixing, TypeError) for mixing in (3, 0.5, None, b"uniform", {1, 2})],
    ],
)
def test_anything_else_is_refused(mixing: Any, error: type[Exception]) -> None:
    with refused("mixing", kind=error):
        as_policy(mixing)
