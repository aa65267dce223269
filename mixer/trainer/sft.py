"""TRL's SFTTrainer on a mixture of streams."""

from mixer.trainer.trainer import MixingMixin

try:
    from trl import SFTTrainer  # type: ignore[attr-defined]  # a lazy import
except ImportError as error:
    raise ImportError(f"MixingSFTTrainer needs TRL ({error}): pip install 'adaptive-mixer[trl]'.") from error


class MixingSFTTrainer(MixingMixin, SFTTrainer):
    """TRL's SFTTrainer on a mixture of streams, each prepared as SFTTrainer prepares a single data set.

    See `MixingMixin` and `trl.SFTTrainer` for the arguments. Streams may have different formats (conversations, prompts
    with completions, text, tokens). For streams with prompts, only completions count for the loss.

    Example:
        >>> trainer = MixingSFTTrainer(  # doctest: +SKIP
        ...     model="some/model", args=SFTConfig("out"), train_dataset={"math": math, "chat": chat}, mixing="Uniform"
        ... )
    """
