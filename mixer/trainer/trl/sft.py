"""TRL's SFTTrainer on a mixture of streams."""

from dataclasses import dataclass

from mixer.run.config import MixingOptions
from mixer.trainer.trainer import MixingMixin

try:
    from trl import SFTConfig, SFTTrainer  # type: ignore[attr-defined]  # a lazy import
except ImportError as error:
    raise ImportError(f"MixingSFTTrainer needs TRL ({error}): pip install 'adaptive-mixer[trl]'.") from error


@dataclass
class MixingSFTConfig(MixingOptions, SFTConfig):
    """The training arguments of a `MixingSFTTrainer`; see `MixingOptions` and `trl.SFTConfig`."""


class MixingSFTTrainer(MixingMixin, SFTTrainer):
    """TRL's SFTTrainer on a mixture of streams, each prepared as SFTTrainer prepares a single data set.

    See `MixingMixin` and `trl.SFTTrainer` for the arguments. Streams may have different formats (conversations, prompts
    with completions, text, tokens). For streams with prompts, only completions count for the loss.

    Example:
        >>> trainer = MixingSFTTrainer(  # doctest: +SKIP
        ...     model="some/model",
        ...     args=MixingSFTConfig("out", mixing="Uniform"),
        ...     train_dataset={"math": math, "chat": chat},
        ... )
    """
