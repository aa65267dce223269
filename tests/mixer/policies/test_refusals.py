"""What policies refuse: of their arguments at once, of the streams at the start of a run."""

from typing import Any

import numpy as np
import pytest

from mixer.policies import Mixture, Uniform
from mixer.policies.registry import built_in_policies
from tests.mixer.policies.observed import NAN, mixture

MADE = built_in_policies()
INF = float("inf")
TARGETS = {"target_losses": {"a": 1.0}}
WRAPS: dict[str, Any] = {"policy": Uniform()}
ARGUMENTS: list[tuple[str, dict[str, Any], str]] = [
    ("Temperature", {"temperature": 0.0}, "temperature must be above 0"),
    ("Temperature", {"temperature": "hot"}, "temperature must be above 0"),
    ("Scheduled", {"points": [(0.0, [1, 1])], "interpolation": "cubic"}, "must be 'linear' or 'step', got 'cubic'"),
    *[
        ("Scheduled", {"points": [(p, [1, 1]) for p in given]}, r"ascending progresses in \[0, 1\]")
        for given in ([], [0.5, 0.5], [0.6, 0.4], [-0.1, 1.0], [0.0, 1.1], [NAN])
    ],
    *[
        ("Scheduled", {"points": points}, r"points must be a list of \(progress, weights\), got .*; such as")
        for points in (3, [0.0, 1.0], [("early", [1, 1])], "ab")
    ],
    ("LossChange", {"temperature": 0.0}, "temperature must be above 0, got 0.0"),
    ("LossChange", {"temperature": "hot"}, "temperature must be above 0, got 'hot'"),
    ("LossChange", {"fast_decay": 0.98}, "fast_decay must be below slow_decay, got 0.98 and 0.98"),
    ("LossChange", {"slow_decay": 1.0}, r"slow_decay must be in \[0, 1\), got 1.0"),
    ("LossChange", {"fast_decay": -0.1}, r"fast_decay must be in \[0, 1\), got -0.1"),
    ("LossChange", {"floor": "low"}, "floor must be in .*, got 'low'"),
    ("LossChange", {"floor": NAN}, "floor must be in"),
    ("LossChange", {"num_warmup_observations": 0}, "num_warmup_observations must be a whole number, 1 or more, got 0"),
    ("LossChange", {"num_warmup_observations": 2.5}, "must be a whole number, 1 or more, got 2.5"),
    ("LossChange", {"loss": "test"}, "loss must be 'train' or 'evaluation', got 'test'"),
    *[("Floor", {**WRAPS, "minimum": given}, r"minimum must be in \[0, 1\]") for given in (-0.1, 1.1, NAN, "low")],
    *[
        ("Smoothed", {**WRAPS, "decay": given}, rf"decay must be in \[0, 1\), got {given!r}; 0 follows at once")
        for given in (-0.1, 1.0, NAN, "slow")
    ],
    *[
        ("WarmUp", {**WRAPS, "num_steps": given}, f"num_steps must be a whole number, 0 or more, got {given!r}; 0 is")
        for given in (-1, NAN, INF, 2.5, "2")
    ],
    ("Hold", {**WRAPS, "num_steps": 0}, "num_steps must be a whole number, 1 or more, got 0; 1 "),
    ("TrustRegion", {**WRAPS, "max_log_change": None}, "TrustRegion needs a limit, got None for both"),
    ("TrustRegion", {**WRAPS, "max_log_change": 0.0}, "max_log_change must be"),
    ("TrustRegion", {**WRAPS, "max_divergence": -1.0}, "max_divergence must be"),
    ("TrustRegion", {**WRAPS, "least": 0.0}, "least must be"),
    ("ADO", {"form": "both"}, "form must be 'paper' or 'code', got 'both'"),
    ("ADO", {"num_warmup_steps": 0}, "num_warmup_steps must be a whole number, 1 or more, got 0"),
    ("ADO", {"refit_steps": 0}, "refit_steps must be a whole number, 1 or more, got 0"),
    ("ADO", {"num_ignored_steps": 1001}, "num_ignored_steps must be at most num_warmup_steps=1000, got 1001"),
    ("ADO", {"floor": -0.1}, r"floor must be in \[0, 1\], got -0.1"),
    ("ADO", {"credit_decay": 1.5}, r"credit_decay must be in \[0, 1\], got 1.5"),
    ("ADO", {"mean_share": NAN}, r"mean_share must be in \[0, 1\], got nan"),
    ("ADO", {"max_points": 7}, "max_points must be an even number, 8 or more, got 7"),
    ("Aioli", {"probe_steps": 1}, "probe_steps must be a whole number, 2 or more"),
    ("Aioli", {"probe_share": 0.5}, "probe_share must be"),
    ("Aioli", {"probe_share": 1.0}, "probe_share=1 shows only the training loss of the probed stream"),
    ("Aioli", {"num_sweeps": 0}, "num_sweeps must be"),
    ("Aioli", {"training_steps": 0}, "training_steps must be"),
    ("Aioli", {"learning_rate": -1.0}, "learning_rate must be"),
    ("Aioli", {"loss": "test"}, "loss must be 'train' or 'evaluation', got 'test'"),
    ("BalancedPiKE", {"tau": 0.0}, "tau must be in .* got 0.0; 3 is best on average"),
    ("BalancedPiKE", {"loss_decay": 1.0}, r"loss_decay must be in \[0, 1\), got 1.0"),
    ("BalancedPiKE", {"signal_rate": -1.0}, "signal_rate must be 0 or more"),
    ("CoBa", {"window": 1}, "window must be"),
    ("CoBa", {"num_warmup_evaluations": 1}, "num_warmup_evaluations must be"),
    ("CoBa", {"tau": -1.0}, "tau must be"),
    ("CoBa", {"floor": 1.1}, "floor must be"),
    *[
        (make, {"acts_on": "both"}, "must be 'sampling' .* or 'loss' .*, got 'both'")
        for make in ("CoBa", "DWA", "FAMO")
    ],
    ("DWA", {"temperature": 0.0}, "temperature must be"),
    ("DWA", {"window_steps": 0}, "window_steps must be a whole number, 1 or more"),
    ("DoGE", {"targets": "a"}, r"got a text: write \['a'\]"),
    ("DoGE", {"targets": 3}, r"targets must be a list of names .*, got 3; None is for all streams"),
    ("DoGE", {"targets": []}, "targets must name at least one stream"),
    ("DoGE", {"rate": NAN}, "rate must be 0 or more, got nan"),
    ("DoReMi", {"reference_losses": {"a": NAN}}, "reference_losses must be finite numbers, but 'a' has nan"),
    ("DoReMi", {"reference_losses": {"a": "low"}}, "reference_losses must be finite numbers, but 'a' has 'low'"),
    ("DoReMi", {"reference_losses": [1.0]}, "reference_losses must map the names of streams to losses, got list"),
    ("FAMO", {"learning_rate": -1.0}, "learning_rate must be"),
    ("FAMO", {"weight_decay": NAN}, "weight_decay must be"),
    ("FAMO", {"lower_bound": INF}, "lower_bound must be"),
    ("FAMO", {"loss_decay": 1.0}, "loss_decay must be"),
    ("GradNorm", {"acts_on": "both"}, r"acts_on must be 'sampling' .* or 'loss' .*, got 'both'"),
    ("GradNorm", {"rate": 0.0}, r"rate must be in \[1e-09, 1\], got 0.0; 1 goes to the fixed point"),
    ("GradNorm", {"alpha": -1.0}, "alpha must be in"),
    ("GroupDRO", {"step_size": -1.0}, "step_size must be 0 or more, got -1.0"),
    ("GroupDRO", {"step_size": INF}, "step_size must be 0 or more, got inf"),
    ("GroupDRO", {"smoothing": 1.1}, r"smoothing must be in \[0, 1\], got 1.1"),
    ("GroupDRO", {"acts_on": "both"}, r"acts_on must be 'sampling' .* or 'loss' .*, got 'both'"),
    ("ODM", {"form": "both"}, "form must be 'paper' or 'code', got 'both'"),
    ("ODM", {"decay": 1.0}, r"decay must be in \[0, 1\), got 1.0"),
    ("ODM", {"num_warmup_steps": -1}, "num_warmup_steps must be a whole number, 0 or more, got -1"),
    ("ObjectiveDescent", {"objective": "best"}, "objective must be 'average' or 'worst', got 'best'"),
    ("ObjectiveDescent", {"criterion": "greedy"}, "criterion must be 'estimate' or 'descent', got 'greedy'"),
    ("ObjectiveDescent", {"loss": "test"}, r"loss must be 'train', 'evaluation' or 'excess', got 'test'"),
    ("ObjectiveDescent", {"max_ratio": 0.5}, r"max_ratio must be in \[1, 1000000.0\], got 0.5"),
    ("ObjectiveDescent", {"evidence": -1.0}, r"evidence must be in \[0, 100\], got -1.0; 2 standard errors are usual"),
    ("ObjectiveDescent", {"step_sharpness": 0.0}, "step_sharpness must be in"),
    ("ObjectiveDescent", {"tau": 0.0}, "tau must be in"),
    ("ObjectiveDescent", {"evidence_decay": 1.0}, r"evidence_decay must be in \[0, 1\), got 1.0"),
    ("PiKE", {"interval_steps": 0}, "interval_steps must be a whole number, 1 or more, got 0; 1 decides after every"),
    ("PiKE", {"interval_steps": 2.5}, "interval_steps must be a whole number, 1 or more, got 2.5"),
    ("PiKE", {"mode": "both"}, "mode must be 'practical' or 'conceptual', got 'both'"),
    ("PiKE", {"bound": "tight"}, "bound must be 'per_stream' or 'published', got 'tight'"),
    ("PiKE", {"noise_rate": NAN}, "noise_rate must be 0 or more, got nan; 0 ignores the noise"),
    ("PiKE", {"max_log_change": -0.1}, r"max_log_change must be in \[0, 100\], got -0.1"),
    ("PiKE", {"step_sharpness": 0.0}, "step_sharpness must be in .* got 0.0; it has no unit"),
    ("PiKE", {"conflict": 0.6}, r"conflict must be in \[0, 0.5\], got 0.6; None measures it"),
    ("PiKE", {"alignment": -0.1}, r"alignment must be in \[0, 1\], got -0.1; None measures it"),
    ("PiKE", {"min_samples": -1}, "min_samples must be a whole number, 0 or more, got -1"),
    ("PiKE", {"decay": 1.0}, r"decay must be in \[0, 1\), got 1.0"),
    ("RegularizedBalance", {"strength": -1.0}, r"strength must be in \[0, 300\], got -1.0; 3 is the paper's"),
    ("SkillIt", {"learning_rate": -0.1}, "learning_rate must be"),
    ("SkillIt", {"window": 0}, "window must be"),
    ("TargetLoss", {"target_losses": {"a": INF}}, "target_losses must be finite numbers, but 'a' has inf"),
    ("TargetLoss", {"target_losses": 2.0}, "target_losses must map the names of streams to losses, got float"),
    ("TargetLoss", {**TARGETS, "form": "both"}, "form must be 'paper' or 'code', got 'both'"),
    ("TargetLoss", {**TARGETS, "step_size": -0.1}, "step_size must be 0 or more, got -0.1"),
    ("TargetLoss", {**TARGETS, "smoothing": -0.1}, r"smoothing must be in \[0, 1\], got -0.1"),
    ("UniMax", {"budget": 0}, "must be"),
    ("UniMax", {"budget": 10, "max_epochs": 0.0}, "must be"),
]


@pytest.mark.parametrize(("make", "arguments", "message"), ARGUMENTS)
def test_arguments_that_cannot_be_are_refused(make: str, arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MADE[make](**arguments)


def test_only_what_can_be_called_is_a_function() -> None:
    with pytest.raises(TypeError, match=r"callable as f\(step, weights\), got int"):
        MADE["Function"](3)  # type: ignore[call-arg]


STREAMS: list[tuple[str, dict[str, Any], str]] = [
    ("Fixed", {"weights": [1, 2, 3]}, r"Fixed: expected 2 weights, one for each of \['a', 'b'\], got shape \[3\]"),
    ("Fixed", {"weights": 3.0}, r"Fixed: expected 2 weights, .* got shape \[\]"),
    ("Fixed", {"weights": [1, -1]}, "Fixed: weights must be finite and 0 or more, but 'b' has -1.0"),
    ("Fixed", {"weights": [NAN, 1]}, "but 'a' has nan"),
    ("Fixed", {"weights": [1, INF]}, "but 'b' has inf"),
    ("Fixed", {"weights": [0, 0]}, "Fixed: the weights of all streams are 0"),
    ("Fixed", {"weights": {"a": 1}}, r"Fixed: .* missing: \['b'\], unknown: \[\]"),
    ("Fixed", {"weights": {"a": 1, "b": 1, "x": 1}}, r"missing: \[\], unknown: \['x'\]"),
    ("Fixed", {"weights": ["one", "two"]}, "Fixed: weights must be numbers"),
    ("Scheduled", {"points": [(0.0, [1, 1]), (0.5, [1, -1])]}, "Scheduled at progress 0.5: .* 'b' has -1.0"),
    ("LossChange", {"floor": 0.6}, r"floor 0\.6 for each of 2 streams is more than 1 in all"),
    ("ADO", {"floor": 0.6}, r"ADO: floor 0\.6 for each of 2 streams is more than 1 in all"),
    ("Floor", {**WRAPS, "minimum": 0.51}, r"0\.51 for each of 2 .* is more than 1 in all; give min.*=0\.25"),
    ("DoReMi", {"reference_losses": {"a": 1.0}}, r"DoReMi: reference_losses .* missing: \['b'\]"),
    (
        "TargetLoss",
        {"target_losses": {"a": 1.0, "x": 1.0}},
        r"TargetLoss: target_losses .*missing: \['b'\], unknown: \['x'\]",
    ),
    *[
        (make, {"targets": ["a", "c"]}, r"targets must be names of streams, \['a', 'b'\]; unknown: \['c'\]")
        for make in ("DoGE", "GRAPE", "RegularizedBalance", "ObjectiveDescent")
    ],
    ("DoGE", {"targets": {"a": -1.0}}, r"'a' has -1\.0"),
    ("SkillIt", {"graph": [[1.0]]}, r"expected a graph of shape \[2, 2\] .* got \[1, 1\]"),
    ("SkillIt", {"graph": [[1.0, 0.0], [1.0]]}, "rows of equal length"),
    ("SkillIt", {"graph": [[1.0, -1.0], [0.0, 1.0]]}, "finite and 0 or more"),
    ("SkillIt", {"graph": [[1.0, NAN], [0.0, 1.0]]}, "finite and 0 or more"),
    (
        "SkillIt",
        {"graph": {"a": {"x": 1.0}, "y": {}}},
        r"the graph names \['x', 'y'\], but the streams are \['a', 'b'\]",
    ),
    ("SkillIt", {"graph": {"a": 0.5}}, "a mapping for each helper"),
    ("UniMax", {"budget": 333}, r"budget of 333 samples is more than 1 passes .* which have 111; .* of 3 or more"),
    ("UniMax", {"budget": 30, "unit": "tokens"}, "UniMax in tokens needs sizes in tokens"),
]


@pytest.mark.parametrize(("make", "arguments", "message"), STREAMS)
def test_what_does_not_fit_the_streams_is_refused_at_the_start(
    make: str, arguments: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        MADE[make](**arguments).start(mixture([0.4, 0.6], [100, 11]))


@pytest.mark.parametrize(
    ("make", "size", "memories", "message"),
    [
        ("Proportional", 30, (1,), r"\['memory'\] are replay buffers.*policy=Proportional\(\)"),
        ("Temperature", 0, (1,), r"\['memory'\] are replay buffers.*policy=Temperature\(\)"),
        ("Temperature", 0, (), r"\['memory'\] are iterable and of unknown size\. Give weights"),
        ("UniMax", 0, (), r"\['memory'\] are iterable and of unknown size\. Give sizes="),
    ],
)
def test_rules_by_size_refuse_streams_that_have_none(
    make: str, size: int, memories: tuple[int, ...], message: str
) -> None:
    policy = MADE[make](**({"budget": 30} if make == "UniMax" else {}))
    with pytest.raises(ValueError, match=message):
        policy.start(Mixture(("a", "memory"), np.array([90, size]), np.array([0.5, 0.5]), memories=memories))
