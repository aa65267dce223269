"""Adaptive mixing of data streams on top of the Hugging Face Trainer."""

import mixer.schedules as schedules
from mixer.adaptive_batch_size import AdaptiveBatchSizeTrainer
from mixer.batch_sampler import AdaptiveBatchSampler
from mixer.budget import Budget
from mixer.controller import Mixing
from mixer.data_loader import MixingDataLoader
from mixer.gradient_aggregation import GradientAggregation
from mixer.gradient_statistics import GradientStatistics
from mixer.groups import Grouping
from mixer.ledger import Ledger
from mixer.order import Order
from mixer.policies import (
    BalancedPiKE,
    Decision,
    Fixed,
    Floor,
    Function,
    Hold,
    LossChange,
    Mixture,
    Observation,
    PiKE,
    Policy,
    Proportional,
    Scheduled,
    Smoothed,
    StaticPolicy,
    Temperature,
    Uniform,
    WarmUp,
    Wrapper,
)
from mixer.probe import GradientProbe
from mixer.probing import Probing
from mixer.streams import Stream
from mixer.trainer import MixingMixin, MixingTrainer

__all__ = [
    "AdaptiveBatchSampler",
    "AdaptiveBatchSizeTrainer",
    "BalancedPiKE",
    "Budget",
    "Decision",
    "Fixed",
    "Floor",
    "Function",
    "GradientAggregation",
    "GradientProbe",
    "GradientStatistics",
    "Grouping",
    "Hold",
    "Ledger",
    "LossChange",
    "Mixing",
    "MixingDataLoader",
    "MixingMixin",
    "MixingTrainer",
    "Mixture",
    "Observation",
    "Order",
    "PiKE",
    "Policy",
    "Probing",
    "Proportional",
    "Scheduled",
    "Smoothed",
    "StaticPolicy",
    "Stream",
    "Temperature",
    "Uniform",
    "WarmUp",
    "Wrapper",
    "schedules",
]
