"""Results of measurements by short names, for tests that make observations up."""

from typing import Any

from mixer.measurements import (
    Alignment,
    EvaluationLoss,
    GradientNoise,
    GradientNorm,
    Gradients,
    LearningRate,
    Loss,
    MeanLoss,
    Results,
)

KINDS = {
    "losses": Loss,
    "evaluation_losses": EvaluationLoss,
    "gradients": Gradients,
    "targets": Alignment,
    "loss": MeanLoss,
    "gradient_norm": GradientNorm,
    "learning_rate": LearningRate,
    "noise": GradientNoise,
}


def parted(shown: dict[str, Any]) -> tuple[dict[str, Any], Results]:
    """What was shown beside measurements, and these by the class of their request; `None` is not measured."""
    measured = {KINDS[name]: value for name, value in shown.items() if name in KINDS and value is not None}
    return {name: value for name, value in shown.items() if name not in KINDS}, measured
