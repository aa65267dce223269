"""MixingSeq2SeqTrainer, and models without weights, whose trainers only plan and load."""

from dataclasses import dataclass
from typing import Any

from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments

from mixer.run.config import MixingOptions
from mixer.trainer.trainer import MixingMixin


@dataclass
class MixingSeq2SeqConfig(MixingOptions, Seq2SeqTrainingArguments):
    """The training arguments of a `MixingSeq2SeqTrainer`; see `MixingOptions` and `Seq2SeqTrainingArguments`."""


class MixingSeq2SeqTrainer(MixingMixin, Seq2SeqTrainer):
    """The `Seq2SeqTrainer` on a mixture of streams; see `MixingMixin`.

    Generation options of `evaluate`, such as `num_beams=4`, apply to each set of a dict.
    """


def stay_on_meta(model: Any) -> Any:
    """Makes a model on torch's meta device stay there, whatever device it is sent to; returns it.

    Its tensors have no values to move. A trainer of it shows the batches of a run, but cannot train.
    """
    model.to = lambda *_args, **_kwargs: model
    return model
