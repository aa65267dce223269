"""Batch-size schedules: rules from observations to the size of the next step."""

from mixer.schedules.ada_batch import AdaBatch
from mixer.schedules.base import BatchDecision, BatchObservation, LearningRateRule, Schedule
from mixer.schedules.constant import Constant
from mixer.schedules.critical_batch_warmup import CriticalBatchWarmup
from mixer.schedules.function import Function
from mixer.schedules.limits import Limits
from mixer.schedules.loss_change import LossChange
from mixer.schedules.noise_scale import NoiseScale
from mixer.schedules.norm_test import NormTest
from mixer.schedules.ramp import Ramp
from mixer.schedules.registry import as_schedule, schedule_classes
from mixer.schedules.seesaw import Seesaw
from mixer.schedules.smoothed_loss_change import SmoothedLossChange

__all__ = [
    "AdaBatch",
    "BatchDecision",
    "BatchObservation",
    "Constant",
    "CriticalBatchWarmup",
    "Function",
    "LearningRateRule",
    "Limits",
    "LossChange",
    "NoiseScale",
    "NormTest",
    "Ramp",
    "Schedule",
    "Seesaw",
    "SmoothedLossChange",
    "as_schedule",
    "schedule_classes",
]
