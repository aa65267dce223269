"""Adaptive mixing of data streams on top of the Hugging Face Trainer."""

from typing import TYPE_CHECKING

import mixer.schedules as schedules
from mixer.budget import Budget
from mixer.gradient_statistics import GradientStatistics
from mixer.lazy_names import lazy_names
from mixer.ledger import Ledger
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

if TYPE_CHECKING:
    from mixer.adaptive_batch_size import AdaptiveBatchSizeTrainer
    from mixer.batch_sampler import AdaptiveBatchSampler
    from mixer.controller import Mixing
    from mixer.data_loader import MixingDataLoader
    from mixer.gradient_aggregation import GradientAggregation
    from mixer.groups import Grouping
    from mixer.heads import Head
    from mixer.multi_task import MultiTaskConfig, MultiTaskModel
    from mixer.probe import GradientProbe
    from mixer.probing import Probing
    from mixer.seq2seq import MixingSeq2SeqTrainer
    from mixer.sft import MixingSFTTrainer as MixingSFTTrainer
    from mixer.stream import Stream
    from mixer.trainer import MixingMixin, MixingTrainer
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "mixer.adaptive_batch_size": ["AdaptiveBatchSizeTrainer"],
            "mixer.batch_sampler": ["AdaptiveBatchSampler"],
            "mixer.controller": ["Mixing"],
            "mixer.data_loader": ["MixingDataLoader"],
            "mixer.gradient_aggregation": ["GradientAggregation"],
            "mixer.groups": ["Grouping"],
            "mixer.heads": ["Head"],
            "mixer.multi_task": ["MultiTaskConfig", "MultiTaskModel"],
            "mixer.probe": ["GradientProbe"],
            "mixer.probing": ["Probing"],
            "mixer.seq2seq": ["MixingSeq2SeqTrainer"],
            "mixer.sft": ["MixingSFTTrainer"],
            "mixer.stream": ["Stream"],
            "mixer.trainer": ["MixingMixin", "MixingTrainer"],
        },
    )

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
