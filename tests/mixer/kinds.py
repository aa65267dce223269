"""Results of measurements by short names, for tests that make observations up."""

from typing import Any

from mixer.measurements import BY_NAME, Alignment, EvaluationLoss, GradientNoise, Loss, MeanLoss, Results

SHORT = {"losses": Loss, "loss": MeanLoss, "evaluation_losses": EvaluationLoss, "targets": Alignment}
KINDS = {**BY_NAME, **SHORT, "noise": GradientNoise}


def parted(shown: dict[str, Any]) -> tuple[dict[str, Any], Results]:
    """What was shown beside measurements, and these by the class of their request; `None` is not measured."""
    measured = {KINDS[name]: value for name, value in shown.items() if name in KINDS and value is not None}
    return {name: value for name, value in shown.items() if name not in KINDS}, measured
