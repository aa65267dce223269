"""Per-stream gradients from the backward pass that training runs anyway."""

from mixer.gradients.probe.gradient_probe import GradientProbe

__all__ = ["GradientProbe"]
