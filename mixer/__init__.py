"""Adaptive mixing of data streams on top of the Hugging Face Trainer."""

from typing import TYPE_CHECKING, Any

import mixer.schedules as schedules
from mixer.adaptive_batch_size import AdaptiveBatchSizeTrainer
from mixer.batch_sampler import AdaptiveBatchSampler
from mixer.budget import Budget
from mixer.controller import Mixing
from mixer.data_loader import MixingDataLoader
from mixer.gradient_aggregation import GradientAggregation
from mixer.gradient_statistics import GradientStatistics
from mixer.groups import Grouping
from mixer.heads import Head
from mixer.ledger import Ledger
from mixer.multi_task import MultiTaskConfig, MultiTaskModel
from mixer.order import Order
from mixer.policies import (
    ADO,
    DWA,
    FAMO,
    GRAPE,
    ODM,
    Aioli,
    BalancedPiKE,
    CoBa,
    Decision,
    DoGE,
    DoReMi,
    Fixed,
    Floor,
    Function,
    GradNorm,
    GroupDRO,
    Hold,
    LossChange,
    Mixture,
    ObjectiveDescent,
    Observation,
    PiKE,
    Policy,
    Proportional,
    RegularizedBalance,
    Scheduled,
    SkillIt,
    Smoothed,
    StaticPolicy,
    TargetLoss,
    Temperature,
    TrustRegion,
    Uniform,
    UniMax,
    WarmUp,
    Wrapper,
)
from mixer.probe import GradientProbe
from mixer.probing import Probing
from mixer.seq2seq import MixingSeq2SeqTrainer
from mixer.stream import Stream
from mixer.trainer import MixingMixin, MixingTrainer

if TYPE_CHECKING:
    from mixer.sft import MixingSFTTrainer as MixingSFTTrainer

__all__ = [
    "ADO",
    "DWA",
    "FAMO",
    "GRAPE",
    "ODM",
    "AdaptiveBatchSampler",
    "AdaptiveBatchSizeTrainer",
    "Aioli",
    "BalancedPiKE",
    "Budget",
    "CoBa",
    "Decision",
    "DoGE",
    "DoReMi",
    "Fixed",
    "Floor",
    "Function",
    "GradNorm",
    "GradientAggregation",
    "GradientProbe",
    "GradientStatistics",
    "GroupDRO",
    "Grouping",
    "Head",
    "Hold",
    "Ledger",
    "LossChange",
    "Mixing",
    "MixingDataLoader",
    "MixingMixin",
    "MixingSeq2SeqTrainer",
    "MixingTrainer",
    "Mixture",
    "MultiTaskConfig",
    "MultiTaskModel",
    "ObjectiveDescent",
    "Observation",
    "Order",
    "PiKE",
    "Policy",
    "Probing",
    "Proportional",
    "RegularizedBalance",
    "Scheduled",
    "SkillIt",
    "Smoothed",
    "StaticPolicy",
    "Stream",
    "TargetLoss",
    "Temperature",
    "TrustRegion",
    "UniMax",
    "Uniform",
    "WarmUp",
    "Wrapper",
    "schedules",
]


def __getattr__(name: str) -> Any:
    """Imports what needs an extra when it is asked for: the rest does without."""
    if name == "MixingSFTTrainer":
        from mixer.sft import MixingSFTTrainer

        return MixingSFTTrainer
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
