"""Plans a whole run without a model, by the objects that plan the trained one."""

from mixer.tools.analysis.simulate.simulate import simulate
from mixer.tools.analysis.simulate.simulated import Simulated, StreamPlan

__all__ = ["Simulated", "StreamPlan", "simulate"]
