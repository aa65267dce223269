"""The Hugging Face Trainer on a mixture of streams."""

from typing import TYPE_CHECKING

from mixer.utils.lazy_imports import lazy_names

if TYPE_CHECKING:
    from mixer.run.probing import Probing
    from mixer.trainer.adaptive_batch_size import AdaptiveBatchSizeTrainer
    from mixer.trainer.gradient_aggregation import GradientAggregation
    from mixer.trainer.method import Method
    from mixer.trainer.trainer import MixingMixin, MixingTrainer
    from mixer.trainer.trl.sft import MixingSFTTrainer as MixingSFTTrainer
    from mixer.trainer.variants import MixingSeq2SeqTrainer
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "mixer.trainer.adaptive_batch_size": ["AdaptiveBatchSizeTrainer"],
            "mixer.trainer.gradient_aggregation": ["GradientAggregation"],
            "mixer.trainer.method": ["Method"],
            "mixer.run.probing": ["Probing"],
            "mixer.trainer.variants": ["MixingSeq2SeqTrainer"],
            "mixer.trainer.trl.sft": ["MixingSFTTrainer"],
            "mixer.trainer.trainer": ["MixingMixin", "MixingTrainer"],
        },
    )

__all__ = [
    "AdaptiveBatchSizeTrainer",
    "GradientAggregation",
    "Method",
    "MixingMixin",
    "MixingSFTTrainer",
    "MixingSeq2SeqTrainer",
    "MixingTrainer",
    "Probing",
]
