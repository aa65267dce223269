import numpy as np
import pytest

from mixer.policies import Fixed, Function, LossChange, Mixture, Policy, Proportional, Uniform, WarmUp
from mixer.policies import __all__ as exported
from mixer.policies.registry import as_policy, policy_classes

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
        assert policy_classes() == concrete


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
