"""Per-stream gradients: the probe, conflicts between streams, and gradient noise from ranks."""

from typing import TYPE_CHECKING

from mixer.utils.lazy_imports import lazy_names

if TYPE_CHECKING:
    from mixer.gradients.probe.gradient_probe import GradientProbe
else:
    __getattr__, __dir__ = lazy_names(__name__, {"mixer.gradients.probe.gradient_probe": ["GradientProbe"]})

__all__ = ["GradientProbe"]
