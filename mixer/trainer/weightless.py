"""A trainer whose model has no weights: it plans, loads and collates as in training."""

from typing import Any

from mixer.trainer.trainer import MixingTrainer


class WeightlessTrainer(MixingTrainer):
    """A `MixingTrainer` for a model on torch's meta device, to look at what a run would be given; it cannot train."""

    def _move_model_to_device(self, model: Any, device: Any) -> None:
        """Moves nothing: there are no values that could be moved."""
