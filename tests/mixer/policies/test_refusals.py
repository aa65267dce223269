"""What policies refuse: of their arguments at once, of the streams at the start of a run."""

from typing import Any

import numpy as np
import pytest

from mixer.policies import Mixture, Uniform
from mixer.policies.contract import weights_array
from mixer.policies.registry import built_in_policies
from mixer.utils.errors import InvalidValueError
from tests.mixer.policies.observed import NAN, mixture
from tests.refusals import refused

INF, MADE = float("inf"), built_in_policies()
NEEDED: dict[str, dict[str, Any]] = {
    **{name: {"policy": Uniform()} for name in ("Floor", "Smoothed", "WarmUp", "Hold", "TrustRegion", "OverfitGuard")},
    "Scheduled": {"points": [(0.0, [1, 1])]},
    "TargetLoss": {"target_losses": {"a": 1.0}},
    "UniMax": {"budget": 10},
}
# By policy and option, each beside what the policy needs: values that it cannot have.
OPTIONS: dict[str, dict[str, tuple[Any, ...]]] = {
    "Temperature": {"temperature": (0.0, NAN, "hot")},
    "Scheduled": {"interpolation": ("cubic",)},
    "LossChange": {"temperature": (0.0, "hot"), "fast_decay": (-0.1, 0.98), "slow_decay": (1.0,), "floor": ("low", NAN)}
    | {"num_warmup_observations": (0, 2.5), "loss": ("test",)},
    "Floor": {"minimum": (-0.1, 1.1, NAN, "low")},
    "Smoothed": {"decay": (-0.1, 1.0, NAN, "slow")},
    "WarmUp": {"num_steps": (-1, NAN, INF, 2.5, "2")},
    "Hold": {"num_steps": (0,)},
    "OverfitGuard": {"action": ("stop",), "patience": (0,), "min_rise": (-0.1,), "least": (2,), "returns_at": (1.5,)},
    "TrustRegion": {"max_log_change": (0.0,), "max_divergence": (-1.0,), "least": (0.0,)},
    "ADO": {"form": ("both",), "num_warmup_steps": (0,), "refit_steps": (0,), "num_ignored_steps": (-1, 1001)}
    | {"floor": (-0.1,), "credit_decay": (1.5,), "mean_share": (NAN,), "max_points": (6, 9)},
    "BalancedPiKE": {"tau": (0.0, NAN), "loss_decay": (1.0,), "signal_rate": (-1.0,)},
    "CoBa": {"window": (1,), "num_warmup_evaluations": (1,), "tau": (-1.0,), "floor": (1.1, NAN), "acts_on": ("both",)},
    "DWA": {"temperature": (0.0,), "window_steps": (0,), "acts_on": ("both",)},
    "DoGE": {"rate": (NAN,), "targets": (3,)},
    "GradNorm": {"acts_on": ("both",), "rate": (0.0,), "alpha": (-1.0,)},
    "GroupDRO": {"step_size": (-1.0, INF), "smoothing": (1.1,), "acts_on": ("both",)},
    "ODM": {"form": ("both",), "decay": (1.0,), "num_warmup_steps": (-1,)},
    "PiKE": {"interval_steps": (0, 2.5), "mode": ("both",), "bound": ("tight",), "noise_rate": (NAN, INF)}
    | {"max_log_change": (-0.1,), "step_sharpness": (0.0,), "conflict": (0.6,), "alignment": (-0.1,)}
    | {"min_samples": (-1,), "decay": (1.0,)},
    "RegularizedBalance": {"strength": (-1.0, 301.0)},
    "SkillIt": {"learning_rate": (-0.1,), "window": (0,)},
    "TargetLoss": {"form": ("both",), "step_size": (-0.1,), "smoothing": (-0.1,)},
    "UniMax": {"budget": (0, NAN), "max_epochs": (0.0, INF)},
}


@pytest.mark.parametrize("make", OPTIONS)
def test_options_out_of_range_are_refused_with_what_they_must_be(make: str) -> None:
    for option, values in OPTIONS[make].items():
        for value in values:
            with refused(option):
                MADE[make](**{**NEEDED.get(make, {}), option: value})


ARGUMENTS: list[tuple[str, dict[str, Any], str]] = [
    *[("Scheduled", {"points": [(p, [1, 1]) for p in given]}, "points") for given in ([], [0.5, 0.5], [0.0, 1.1])],
    *[("Scheduled", {"points": points}, "points") for points in (3, [0.0, 1.0])],
    ("TrustRegion", {"policy": Uniform(), "max_log_change": None}, "max_log_change"),
    ("DoGE", {"targets": "a"}, "targets"),
    ("DoGE", {"targets": []}, "targets"),
    ("TargetLoss", {"target_losses": {"a": NAN}}, "target_losses"),
    ("Function", {"function": 3}, "function"),
    ("TargetLoss", {"target_losses": 2.0}, "target_losses"),
]


@pytest.mark.parametrize(("make", "arguments", "option"), ARGUMENTS)
def test_arguments_that_cannot_be_are_refused(make: str, arguments: dict[str, Any], option: str) -> None:
    with refused(option, kind=(ValueError, TypeError)):
        MADE[make](**arguments)


STREAMS: list[tuple[str, dict[str, Any], str]] = [
    ("Fixed", {"weights": [1, 2, 3]}, "Fixed"),
    ("Fixed", {"weights": [1, -1]}, "Fixed"),
    ("Fixed", {"weights": {"a": True, "b": 1.0}}, "Fixed"),
    ("Scheduled", {"points": [(0.0, [1, 1]), (0.5, [1, -1])]}, "Scheduled at 0.5"),
    ("ADO", {"floor": 0.6}, "floor"),
    ("Floor", {"policy": Uniform(), "minimum": 0.51}, "minimum"),
    ("TargetLoss", {"target_losses": {"a": 1.0, "x": 1.0}}, "TargetLoss: target_losses"),
    *[(make, {"targets": ["a", "c"]}, "targets") for make in ("DoGE", "GRAPE", "RegularizedBalance")],
    ("DoGE", {"targets": {"a": -1.0}}, "DoGE, targets"),
    ("SkillIt", {"graph": [[1.0]]}, "graph"),
    ("SkillIt", {"graph": [[1.0, 0.0], [1.0]]}, "graph"),
    ("SkillIt", {"graph": {"a": {"x": 1.0}, "y": {}}}, "graph"),
    ("SkillIt", {"graph": {"a": 0.5}}, "graph"),
    ("UniMax", {"budget": 333}, "budget"),
    ("UniMax", {"budget": 30, "unit": "tokens"}, "sizes"),
]


@pytest.mark.parametrize(("make", "arguments", "option"), STREAMS)
def test_what_does_not_fit_the_streams_is_refused_at_the_start(make: str, arguments: Any, option: str) -> None:
    with refused(option):
        MADE[make](**arguments).start(mixture([0.4, 0.6], [100, 11]))


@pytest.mark.parametrize(
    ("make", "size", "memories", "option"),
    [("Proportional", 30, (1,), "mixing"), ("Temperature", 0, (), "mixing"), ("UniMax", 0, (), "sizes")],
)
def test_rules_by_size_refuse_streams_that_have_none(make: str, size: int, memories: Any, option: str) -> None:
    own = Mixture(("a", "memory"), np.array([90, size]), np.array([0.5, 0.5]), memories=memories)
    with refused(option):
        MADE[make](**NEEDED.get(make, {})).start(own)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
def test_tensors_with_a_graph_are_weights(kind: str) -> None:
    torch = pytest.importorskip("torch")
    made = torch.tensor([1.0, 3.0], dtype=getattr(torch, kind), requires_grad=True) * 2
    for weights in (made, list(made), {"a": made[0], "b": made[1]}):
        assert weights_array(weights, ["a", "b"], "mixing").tolist() == [2.0, 6.0]


def test_a_misspelt_stream_is_suggested() -> None:
    with pytest.raises(InvalidValueError) as refused:
        weights_array({"math": 1.0, "cdoe": 2.0}, ["math", "code"], "mixing")
    assert (refused.value.found, refused.value.hint) == (["math", "cdoe"], "Did you mean 'code'?")
