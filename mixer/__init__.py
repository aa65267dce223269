"""Adaptive mixing of data streams on top of the Hugging Face Trainer."""

from typing import TYPE_CHECKING

from mixer.utils.lazy_imports import lazy_names

if TYPE_CHECKING:
    from mixer.gradients.probe import GradientProbe as GradientProbe
    from mixer.ledger.ledger import Ledger as Ledger
    from mixer.loading.batch_sampler import AdaptiveBatchSampler as AdaptiveBatchSampler
    from mixer.loading.dataloader import MixingDataLoader as MixingDataLoader
    from mixer.loading.token_file import TokenFile as TokenFile
    from mixer.measurements.gradients import GradientStatistics as GradientStatistics
    from mixer.mixture.by_column import streams_by_column as streams_by_column
    from mixer.mixture.clock import Budget as Budget
    from mixer.mixture.controller import Mixing as Mixing
    from mixer.mixture.groups import Grouping as Grouping
    from mixer.mixture.permutation import Order as Order
    from mixer.mixture.stream import Stream as Stream
    from mixer.models.heads import Head as Head
    from mixer.models.multi_task import MultiTaskConfig as MultiTaskConfig, MultiTaskModel as MultiTaskModel
    from mixer.policies import *  # noqa: F403 so that no policy is listed twice
    from mixer.run.config import MixingConfig as MixingConfig, MixingOptions as MixingOptions
    from mixer.run.hooks import ForwardResult as ForwardResult
    from mixer.run.probing import Probing as Probing
    from mixer.tools.analysis.inspect.of_trainer import inspect_trainer as inspect_trainer
    from mixer.tools.analysis.value import source_values as source_values
    from mixer.tools.recipe.gguf import convert_gguf as convert_gguf
    from mixer.tools.records.exposure import Exposure as Exposure
    from mixer.trainer.adaptive_batch_size import AdaptiveBatchSizeTrainer as AdaptiveBatchSizeTrainer
    from mixer.trainer.gradient_aggregation import GradientAggregation as GradientAggregation
    from mixer.trainer.grpo.trainers import (
        GRPOMixin as GRPOMixin,
        MixingGRPOConfig as MixingGRPOConfig,
        MixingGRPOTrainer as MixingGRPOTrainer,
    )
    from mixer.trainer.method import Method as Method, RunContext as RunContext
    from mixer.trainer.sentence_transformers.trainers import (
        MixingCrossEncoderConfig as MixingCrossEncoderConfig,
        MixingCrossEncoderTrainer as MixingCrossEncoderTrainer,
        MixingMultiVectorEncoderConfig as MixingMultiVectorEncoderConfig,
        MixingMultiVectorEncoderTrainer as MixingMultiVectorEncoderTrainer,
        MixingSentenceTransformerConfig as MixingSentenceTransformerConfig,
        MixingSentenceTransformerTrainer as MixingSentenceTransformerTrainer,
        MixingSparseEncoderConfig as MixingSparseEncoderConfig,
        MixingSparseEncoderTrainer as MixingSparseEncoderTrainer,
    )
    from mixer.trainer.trainer import MixingMixin as MixingMixin, MixingTrainer as MixingTrainer
    from mixer.trainer.trl.sft import MixingSFTConfig as MixingSFTConfig, MixingSFTTrainer as MixingSFTTrainer
    from mixer.trainer.variants import (
        MixingSeq2SeqConfig as MixingSeq2SeqConfig,
        MixingSeq2SeqTrainer as MixingSeq2SeqTrainer,
    )
    from mixer.utils.data_set import DataSet as DataSet
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "mixer.tools.analysis.inspect.of_trainer": ["inspect_trainer"],
            "mixer.tools.analysis.value": ["source_values"],
            "mixer.gradients.probe": ["GradientProbe"],
            "mixer.tools.recipe.gguf": ["convert_gguf"],
            "mixer.tools.records.exposure": ["Exposure"],
            "mixer.ledger.ledger": ["Ledger"],
            "mixer.loading.batch_sampler": ["AdaptiveBatchSampler"],
            "mixer.loading.dataloader": ["MixingDataLoader"],
            "mixer.loading.token_file": ["TokenFile"],
            "mixer.mixture.by_column": ["streams_by_column"],
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
            "mixer.run.config": ["MixingConfig", "MixingOptions"],
            "mixer.trainer.gradient_aggregation": ["GradientAggregation"],
            "mixer.run.hooks": ["ForwardResult"],
            "mixer.trainer.method": ["Method", "RunContext"],
            "mixer.run.probing": ["Probing"],
            "mixer.trainer.trainer": ["MixingMixin", "MixingTrainer"],
            "mixer.utils.data_set": ["DataSet"],
            "mixer.trainer.variants": ["MixingSeq2SeqConfig", "MixingSeq2SeqTrainer"],
        },
        whole="mixer.policies",
        extras={
            "mixer.trainer.trl.sft": ["MixingSFTConfig", "MixingSFTTrainer"],
            "mixer.trainer.grpo.trainers": ["GRPOMixin", "MixingGRPOConfig", "MixingGRPOTrainer"],
            "mixer.trainer.sentence_transformers.trainers": [
                *("MixingCrossEncoderConfig", "MixingCrossEncoderTrainer"),
                *("MixingMultiVectorEncoderConfig", "MixingMultiVectorEncoderTrainer"),
                *("MixingSentenceTransformerConfig", "MixingSentenceTransformerTrainer"),
                *("MixingSparseEncoderConfig", "MixingSparseEncoderTrainer"),
            ],
        },
    )
