import warnings
from collections.abc import Iterator
from importlib.metadata import EntryPoint

import numpy as np
import pytest

from mixer.policies import Fixed, Function, LossChange, Mixture, Policy, Proportional, Uniform, WarmUp, registry
from mixer.policies import __all__ as exported
from mixer.policies.registry import PLUG_IN_GROUP, as_policy, built_in_policies, policy_classes
from mixer.utils import entry_points as plugins

MIXTURE = Mixture(("math", "code"), np.array([30, 10]), np.array([0.5, 0.5]))


def weights_of(mixing: object) -> list[float]:
    return as_policy(mixing).start(MIXTURE).weights.tolist()


class TestPolicyClasses:
    def test_every_exported_policy_that_can_be_made_is_known(self) -> None:
        import mixer.policies

        found = {name: getattr(mixer.policies, name) for name in exported if name[0].isupper()}
        concrete = {
            name: value
            for name, value in found.items()
            if issubclass(value, Policy) and not value.__abstractmethods__ and name != "Wrapper"
        }
        assert built_in_policies() == concrete
        assert concrete.items() <= policy_classes().items()


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
        assert group == PLUG_IN_GROUP == "adaptive_mixer.policies"
        self.num_asked += 1
        return [EntryPoint(name, value, group) for name, value in self.values.items()]

    def test_policies_of_other_packages_are_known_by_name(self) -> None:
        self.values = {"Twice": f"{__name__}:Twice", "ReplayRatio": "replay.policies:ReplayRatio"}
        assert [*policy_classes()] == [*built_in_policies(), "Twice", "ReplayRatio"]
        assert isinstance(as_policy("twice"), Twice)
        assert as_policy("replay_ratio").name == "ReplayRatio(Fixed)"

    def test_they_are_looked_up_once(self) -> None:
        policy_classes()
        policy_classes()
        as_policy("uniform")
        assert self.num_asked == 1

    @pytest.mark.parametrize(
        ("value", "reason"),
        [
            ("no_such_package:Lost", "ModuleNotFoundError: No module named 'no_such_package'"),
            (f"{__name__}:Lost", "AttributeError: .*Lost"),
            (f"{__name__}:MIXTURE", "is no class of policies; derive it from mixer.Policy"),
            ("mixer.policies:Mixture", "is no class of policies"),
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


class TestAsPolicy:
    def test_a_policy_is_taken_as_it_is(self) -> None:
        policy = LossChange()
        assert as_policy(policy) is policy

    @pytest.mark.parametrize(
        ("name", "kind"),
        [
            ("Uniform", Uniform),
            ("uniform", Uniform),
            ("PROPORTIONAL", Proportional),
            ("LossChange", LossChange),
            ("loss_change", LossChange),
            ("loss-change", LossChange),
        ],
    )
    def test_a_name(self, name: str, kind: type[Policy]) -> None:
        assert type(as_policy(name)) is kind

    @pytest.mark.parametrize("weights", [{"code": 1, "math": 3}, [3, 1], (0.75, 0.25), np.array([6.0, 2.0])])
    def test_weights_by_name_or_in_order(self, weights: object) -> None:
        assert isinstance(as_policy(weights), Fixed)
        assert weights_of(weights) == [0.75, 0.25]

    def test_a_function(self) -> None:
        assert isinstance(as_policy(lambda step, weights: [3, 1]), Function)
        assert weights_of(lambda step, weights: [3, 1]) == [0.75, 0.25]


class TestErrors:
    def test_an_unknown_name_lists_what_there_is_and_guesses(self) -> None:
        with pytest.raises(
            ValueError, match=r"no policy is called 'unifrom'.*'Proportional'.*Did you mean 'Uniform'\?"
        ):
            as_policy("unifrom")

    def test_a_name_like_no_other_is_not_guessed(self) -> None:
        with pytest.raises(ValueError, match=r"no policy is called 'qqq'") as caught:
            as_policy("qqq")
        assert "Did you mean" not in str(caught.value)

    @pytest.mark.parametrize(
        ("name", "required"),
        [
            ("Scheduled", "points"),
            ("Function", "function"),
            ("Floor", "policy"),
            ("warm_up", "policy"),
            ("hold", "policy"),
        ],
    )
    def test_a_name_that_needs_arguments_names_them(self, name: str, required: str) -> None:
        with pytest.raises(ValueError, match=rf"needs \['{required}'\]; give an instance"):
            as_policy(name)

    def test_a_class_is_not_an_instance(self) -> None:
        with pytest.raises(TypeError, match=r"mixing is the class WarmUp; give an instance: mixing=WarmUp\(\.\.\.\)"):
            as_policy(WarmUp)

    @pytest.mark.parametrize("mixing", [3, 0.5, None, b"uniform", {1, 2}])
    def test_anything_else_is_refused(self, mixing: object) -> None:
        with pytest.raises(TypeError, match=f"got {type(mixing).__name__}"):
            as_policy(mixing)
