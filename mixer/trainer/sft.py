"""SFTTrainer of TRL on a mixture of streams."""

from mixer.trainer.trainer import MixingMixin

try:
    from trl import SFTTrainer  # type: ignore[attr-defined]  # it is imported when it is asked for
except ImportError as error:
    raise ImportError(f"MixingSFTTrainer needs TRL ({error}): pip install 'adaptive-mixer[trl]'.") from error


class MixingSFTTrainer(MixingMixin, SFTTrainer):
    """TRL's SFTTrainer on a mixture of streams, each of which it prepares as it would the only one.

    See `MixingMixin` and `trl.SFTTrainer` for the arguments. Streams may be of different formats (conversations,
    prompts with completions, text, tokens); completions alone are learned of those that have prompts.

    Example:
        >>> trainer = MixingSFTTrainer(  # doctest: +SKIP
        ...     model="some/model", args=SFTConfig("out"), train_dataset={"math": math, "chat": chat}, mixing="Uniform"
        ... )
    """
