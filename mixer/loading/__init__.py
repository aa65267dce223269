"""From a step's plan to this rank's micro-batches, and loaders for your own loop."""

from typing import TYPE_CHECKING

from mixer.utils.lazy_imports import lazy_names

if TYPE_CHECKING:
    from mixer.loading.batch_sampler import AdaptiveBatchSampler
    from mixer.loading.dataloader import MixingDataLoader
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {
            "mixer.loading.batch_sampler": ["AdaptiveBatchSampler"],
            "mixer.loading.dataloader": ["MixingDataLoader"],
        },
    )

__all__ = ["AdaptiveBatchSampler", "MixingDataLoader"]
