"""MixingSeq2SeqTrainer, and a trainer without weights that only plans and loads."""

from typing import Any

from transformers import Seq2SeqTrainer

from mixer.trainer.trainer import MixingMixin, MixingTrainer


class MixingSeq2SeqTrainer(MixingMixin, Seq2SeqTrainer):
    """The `Seq2SeqTrainer` on a mixture of streams; see `MixingMixin`.

    Options for generation that `evaluate` gets, such as `num_beams=4`, hold for each set of a dict.
    """


class WeightlessTrainer(MixingTrainer):
    """A `MixingTrainer` for a model on torch's meta device, to look at what a run would be given; it cannot train."""

    def _move_model_to_device(self, model: Any, device: Any) -> None:
        """Moves nothing: there are no values that could be moved."""
