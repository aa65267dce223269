"""Loading: turns each step's plan into this rank's micro-batches, for the trainer and for your own training loop."""

from typing import TYPE_CHECKING

from mixer.utils.lazy_imports import lazy_names

if TYPE_CHECKING:
    from mixer.loading.batch_sampler import AdaptiveBatchSampler
    from mixer.loading.dataloader import MixingDataLoader
else:
    __getattr__, __dir__ = lazy_names(
        __name__,
        {"mixer.loading.batch_sampler": ["AdaptiveBatchSampler"], "mixer.loading.dataloader": ["MixingDataLoader"]},
    )

__all__ = ["AdaptiveBatchSampler", "MixingDataLoader"]
