"""The checks of `mixer inspect` for a trainer that was built without a recipe."""

from collections.abc import Mapping
from typing import Any

from transformers.models.auto import modeling_auto

from mixer.loading.preprocessing import preprocessed
from mixer.mixture.stream import Stream
from mixer.models.inputs import inner_model
from mixer.tools.analysis.inspect.findings import Finding, findings_of
from mixer.tools.analysis.inspect.inspect_view import view_of
from mixer.tools.analysis.inspect.inspection import Inspection
from mixer.tools.console import console
from mixer.tools.recipe.streams import BuiltStream
from mixer.trainer.trainer import MixingMixin
from mixer.utils.errors import InvalidTypeError, require

# The classes of each task, by their names in transformers; a class of several is of the first.
_CLASSES = {
    "causal-lm": modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
    "masked-lm": modeling_auto.MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    "sequence-classification": modeling_auto.MODEL_FOR_SEQUENCE_CLASSIFICATION_MAPPING_NAMES,
    "token-classification": modeling_auto.MODEL_FOR_TOKEN_CLASSIFICATION_MAPPING_NAMES,
}


def inspect_trainer(trainer: MixingMixin, num_samples: int = 50_000, seed: int = 0) -> list[Finding]:
    """Inspects the streams of a trainer, with its collators, tokenizer and model, and prints what is found.

    Args:
        trainer: The trainer; its run does not begin.
        num_samples: Maximum number of samples to read of each stream, and of its evaluation set.
        seed: Seed for drawing these samples and the examples.

    Returns:
        The problems, as `mixer inspect` warns of them; empty if there are none.

    Raises:
        ValueError: If the trainer has no training data, an option is out of its range, or there are several ranks.
        TypeError: If it is another trainer.
    """
    if not hasattr(trainer, "streams"):
        raise InvalidTypeError(option="trainer", expected="a MixingTrainer", found=type(trainer).__name__)
    require(trainer.train_dataset is not None, "train_dataset", "given to the trainer", None)
    for option, value, least in (("num_samples", num_samples, 1), ("seed", seed, 0)):
        require(value >= least, option, f"at least {least}", value)
    hint = "Start the script without torchrun or accelerate launch."
    require(trainer.args.world_size == 1, "world_size", "1 for inspect_trainer", trainer.args.world_size, hint)
    inspection = Inspection(trainer, _streams(trainer), task_of(trainer.model), num_samples, seed)
    findings = findings_of(inspection)
    console().print(view_of(inspection, findings))
    return findings


def task_of(model: Any) -> str:
    """Returns the task of a model by its class, as recipes name it; `"encoder"` for a model of another kind."""
    inner = inner_model(model)
    if getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        return "seq2seq-lm"
    name = type(inner).__name__
    return next((task for task, classes in _CLASSES.items() if name in classes.values()), "encoder")


def _streams(trainer: MixingMixin) -> dict[str, BuiltStream]:
    sets: Any = trainer.eval_dataset
    return {
        stream.name: BuiltStream(stream, _evaluation(stream, sets, len(trainer.streams)), None)
        for stream in trainer.streams
    }


def _evaluation(stream: Stream, sets: Any, num_streams: int) -> Any:
    """Returns the evaluation set of a stream: that of its name, or the only one of a single stream."""
    only = sets if num_streams == 1 else None
    own = sets.get(stream.name) if isinstance(sets, Mapping) else only
    return None if own is None else preprocessed(own, stream.preprocess)
