"""The Trainer of encoder-decoder models on a mixture of streams."""

from transformers import Seq2SeqTrainer

from mixer.trainer.trainer import MixingMixin


class MixingSeq2SeqTrainer(MixingMixin, Seq2SeqTrainer):
    """The `Seq2SeqTrainer` on a mixture of streams; see `MixingMixin`.

    Options for generation that `evaluate` gets, such as `num_beams=4`, hold for each set of a dict.
    """
