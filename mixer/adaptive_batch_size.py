"""A Trainer whose batch size a function decides: the interface of the extension that was published for it."""

from collections.abc import Callable
from typing import Any

from transformers import TrainingArguments

from mixer.schedules import BatchDecision, Function
from mixer.trainer import MixingTrainer


class PerDevice(Function):
    """Sizes by a user's function of a device's own size: `f(step, batch_size) -> int`, times the number of ranks.

    Args:
        function: See `Function`; what it takes and returns are samples of one rank.
        world_size: Number of ranks.

    Raises:
        TypeError: As for `Function`.
        ValueError: As for `Function`.
    """

    def __init__(self, function: Callable[[int, int], int], world_size: int):
        super().__init__(function)
        self._world_size = world_size

    def _call(self, step: int, batch_size: int) -> BatchDecision:
        own = super()._call(step, batch_size // self._world_size)
        return BatchDecision(self._world_size * own.batch_size)


class AdaptiveBatchSizeTrainer(MixingTrainer):
    """The Trainer with a batch size that changes: a drop-in for the extension of the same name.

    That extension (github.com/ifiaposto/hf_trainer_with_online_batch_size) is bound to one version of the Trainer,
    loads without looking ahead and guesses how long an epoch is; this one does not. A mixture of streams is had by
    `train_dataset` and `mixing` as in `MixingTrainer`.

    Args:
        batch_size_scheduler: `f(step, batch_size) -> int`, called before every update with the number of updates
            done and the size that ruled the last one (at first `per_device_train_batch_size` ×
            `gradient_accumulation_steps`) and giving the size of the next: samples of one device.
        model: As for the Trainer.
        args: As for the Trainer.
        *positional: Further arguments of `MixingTrainer`.
        **kwargs: Further arguments of `MixingTrainer`, but for `batch_size`.

    Raises:
        TypeError: If `batch_size_scheduler` cannot be called, or `batch_size` is given beside it.
        ValueError: As for `MixingTrainer`; during the run, with the step, if the function gives no whole number.

    Example:
        >>> trainer = AdaptiveBatchSizeTrainer(  # doctest: +SKIP
        ...     batch_size_scheduler=lambda step, size: size + 1 if step and step % 5 == 0 else size,
        ...     model=model, args=args, train_dataset=train_dataset, data_collator=data_collator,
        ... )
    """

    def __init__(
        self,
        batch_size_scheduler: Callable[[int, int], int],
        model: Any = None,
        args: TrainingArguments | None = None,
        *positional: Any,
        **kwargs: Any,
    ):
        if "batch_size" in kwargs:
            raise TypeError("batch_size is what batch_size_scheduler decides here; give it to a MixingTrainer instead.")
        args = TrainingArguments("tmp_trainer") if args is None else args  # the Trainer's own default
        kwargs["batch_size"] = PerDevice(batch_size_scheduler, args.world_size)
        super().__init__(model, args, *positional, **kwargs)
