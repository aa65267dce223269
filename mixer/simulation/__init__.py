"""A whole run planned without a model, by the objects that plan the trained one."""

from mixer.simulation.assumed import AssumedLosses
from mixer.simulation.simulate import simulate
from mixer.simulation.simulated import Simulated, StreamPlan

__all__ = ["AssumedLosses", "Simulated", "StreamPlan", "simulate"]
