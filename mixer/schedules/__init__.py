"""Batch-size schedules: rules from observations to the size of the next step."""

from mixer.schedules.ada_batch import AdaBatch as AdaBatch
from mixer.schedules.base import (
    BatchDecision as BatchDecision,
    BatchObservation as BatchObservation,
    LearningRateRule as LearningRateRule,
    Schedule as Schedule,
)
from mixer.schedules.constant import Constant as Constant
from mixer.schedules.critical_batch_warmup import CriticalBatchWarmup as CriticalBatchWarmup
from mixer.schedules.function import Function as Function
from mixer.schedules.limits import Limits as Limits
from mixer.schedules.loss_change import LossChange as LossChange
from mixer.schedules.noise_scale import NoiseScale as NoiseScale
from mixer.schedules.norm_test import NormTest as NormTest
from mixer.schedules.ramp import Ramp as Ramp
from mixer.schedules.registry import as_schedule as as_schedule, schedule_classes as schedule_classes
from mixer.schedules.seesaw import Seesaw as Seesaw
from mixer.schedules.smoothed_loss_change import SmoothedLossChange as SmoothedLossChange
