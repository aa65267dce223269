"""MixingSeq2SeqTrainer, and trainers without weights that only plan and load."""

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


def weightless(kind: type[MixingMixin]) -> type[Any]:
    """Makes a trainer for a model on torch's meta device, to inspect the batches of a run; it cannot train."""

    def stay(_self: Any, _model: Any, _device: Any) -> None:
        """Does nothing: meta tensors have no values to move."""

    return type(f"Weightless{kind.__name__}", (kind,), {"_move_model_to_device": stay})


def stay_on_meta(model: Any) -> Any:
    """Makes a model on torch's meta device stay there, whatever device it is sent to; returns it."""
    model.to = lambda *_args, **_kwargs: model
    return model
