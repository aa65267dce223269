"""Batch-size schedules: each one a rule from what the run showed to the size of the next update."""

from mixer.schedules.base import BatchDecision, BatchObservation, GradientNoise, LearningRateRule, Schedule
from mixer.schedules.limits import Limits

__all__ = ["BatchDecision", "BatchObservation", "GradientNoise", "LearningRateRule", "Limits", "Schedule"]
