"""Measuring the gradients of every stream in the one backward that is done anyway."""

from mixer.gradients.probe.gradient_probe import GradientProbe

__all__ = ["GradientProbe"]
