"""Adaptive mixing of data streams on top of the Hugging Face Trainer."""

from typing import TYPE_CHECKING

from mixer.utils.lazy_imports import lazy_names

if TYPE_CHECKING:
    import mixer.schedules as schedules
    from mixer.analysis.inspect.of_trainer import inspect_trainer
    from mixer.gradients.probe import GradientProbe
    from mixer.ledger.ledger import Ledger
    from mixer.loading.batch_sampler import AdaptiveBatchSampler
    from mixer.loading.dataloader import MixingDataLoader
    from mixer.measurements.gradients import GradientStatistics
    from mixer.mixture.clock import Budget
    from mixer.mixture.controller import Mixing
    from mixer.mixture.groups import Grouping
    from mixer.mixture.permutation import Order
    from mixer.mixture.stream import Stream
    from mixer.models.heads import Head
    from mixer.models.multi_task import MultiTaskConfig, MultiTaskModel
    from mixer.policies import (
        ADO,
        DGA,
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
        MarginalValue,
        Mixture,
        Objective,
        Observation,
        OPMix,
        OverfitGuard,
        PiKE,
        Policy,
        Proportional,
        RegularizedBalance,
        Safeguard,
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
    from mixer.trainer.adaptive_batch_size import AdaptiveBatchSizeTrainer
    from mixer.trainer.config import MixingConfig, MixingOptions
    from mixer.trainer.gradient_aggregation import GradientAggregation
    from mixer.trainer.hooks import ForwardResult
    from mixer.trainer.method import Method, RunContext, TaskContext
    from mixer.trainer.observers.gradient_options import Probing
    from mixer.trainer.sft import MixingSFTConfig as MixingSFTConfig
    from mixer.trainer.sft import MixingSFTTrainer as MixingSFTTrainer
    from mixer.trainer.trainer import MixingMixin, MixingTrainer
    from mixer.trainer.variants import MixingSeq2SeqConfig, MixingSeq2SeqTrainer

__all__ = [
    "ADO",
    "DGA",
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
    "ForwardResult",
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
    "MarginalValue",
    "Method",
    "Mixing",
    "MixingConfig",
    "MixingDataLoader",
    "MixingMixin",
    "MixingOptions",
    "MixingSeq2SeqConfig",
    "MixingSeq2SeqTrainer",
    "MixingTrainer",
    "Mixture",
    "MultiTaskConfig",
    "MultiTaskModel",
    "OPMix",
    "Objective",
    "Observation",
    "Order",
    "OverfitGuard",
    "PiKE",
    "Policy",
    "Probing",
    "Proportional",
    "RegularizedBalance",
    "RunContext",
    "Safeguard",
    "Scheduled",
    "SkillIt",
    "Smoothed",
    "StaticPolicy",
    "Stream",
    "TargetLoss",
    "TaskContext",
    "Temperature",
    "TrustRegion",
    "UniMax",
    "Uniform",
    "WarmUp",
    "Wrapper",
    "inspect_trainer",
    "schedules",
]

if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "mixer.policies": __all__,  # but for those below
            "mixer.analysis.inspect.of_trainer": ["inspect_trainer"],
            "mixer.gradients.probe": ["GradientProbe"],
            "mixer.ledger.ledger": ["Ledger"],
            "mixer.loading.batch_sampler": ["AdaptiveBatchSampler"],
            "mixer.loading.dataloader": ["MixingDataLoader"],
            "mixer.mixture.clock": ["Budget"],
            "mixer.mixture.controller": ["Mixing"],
            "mixer.mixture.groups": ["Grouping"],
            "mixer.mixture.permutation": ["Order"],
            "mixer.mixture.stream": ["Stream"],
            "mixer.models.heads": ["Head"],
            "mixer.models.multi_task": ["MultiTaskConfig", "MultiTaskModel"],
            "mixer.measurements.gradients": ["GradientStatistics"],
            "mixer.schedules": ["schedules"],
            "mixer.trainer.adaptive_batch_size": ["AdaptiveBatchSizeTrainer"],
            "mixer.trainer.config": ["MixingConfig", "MixingOptions"],
            "mixer.trainer.gradient_aggregation": ["GradientAggregation"],
            "mixer.trainer.hooks": ["ForwardResult"],
            "mixer.trainer.method": ["Method", "RunContext", "TaskContext"],
            "mixer.trainer.observers.gradient_options": ["Probing"],
            "mixer.trainer.sft": ["MixingSFTConfig", "MixingSFTTrainer"],
            "mixer.trainer.trainer": ["MixingMixin", "MixingTrainer"],
            "mixer.trainer.variants": ["MixingSeq2SeqConfig", "MixingSeq2SeqTrainer"],
        },
    )
