"""A Trainer whose batch size is set by a function: the interface of a published extension."""

from collections.abc import Callable
from typing import Any

from torch import nn
from transformers import TrainerCallback, TrainerState, TrainingArguments

from mixer.mixture.controller import Mixing
from mixer.models.inputs import parameters_of_forward
from mixer.run.samples import LoadingRules, goes_by_first
from mixer.schedules.base import BatchDecision, Schedule
from mixer.schedules.function import Function
from mixer.trainer.trainer import MixingTrainer
from mixer.utils.errors import InvalidTypeError, wrong_type

# More rows at once gain little on a device that is busy already.
_MOST_AT_ONCE = 64
_DIGITS_OF_COVERAGE = 5


class PerDevice(Function):
    """A schedule by a user's function of the batch size per device: `f(step, batch_size) -> int`.

    Args:
        function: See `Function`, except that it is called after every step and not before the first one; its argument
            and result are samples per rank.
        world_size: Number of ranks.

    Raises:
        TypeError: As for `Function`.
        ValueError: As for `Function`.
    """

    def __init__(self, function: Callable[[int, int], int], world_size: int):
        super().__init__(function)
        self._world_size = world_size

    def start(self, initial: int) -> BatchDecision:
        """Starts with the batch size of the training arguments; see `Schedule.start`."""
        return Schedule.start(self, initial)

    def _call(self, step: int, batch_size: int) -> BatchDecision:
        own = super()._call(step, batch_size // self._world_size)
        return BatchDecision(self._world_size * own.batch_size)


class CoverageCallback(TrainerCallback):
    """Shows epoch and coverage as the extension does.

    Args:
        mixing: The controller of the mixture.
    """

    def __init__(self, mixing: Mixing):
        self._mixing = mixing

    def on_train_begin(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Shows the coverage of a resumed run."""
        self._show_coverage(state)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, *_: Any, **kwargs: Any) -> None:
        """Shows epoch and coverage."""
        clock = self._mixing.clock
        state.epoch = clock.num_samples / clock.whole_epoch if clock.has_length else clock.epoch
        self._show_coverage(state)

    on_epoch_end = on_step_end  # after the rest of an epoch may have been dropped

    def _show_coverage(self, state: TrainerState) -> None:
        clock, shown = self._mixing.clock, vars(state)
        shown["train_coverage"] = round(clock.epoch_coverage, _DIGITS_OF_COVERAGE)
        num_examples = clock.whole_epoch if clock.has_length else clock.max_steps * clock.batch_size
        shown.update(num_train_examples=num_examples, num_seen_train_examples=clock.num_samples)


class ExtensionRules(LoadingRules):
    """Loads as the extension does: all samples of a rank at once, with all columns for a user's collator.

    Args:
        trainer: The trainer.
        max_samples: Maximum samples of a micro-batch; `None` for 64, or that of the training arguments if it is more.
    """

    def __init__(self, trainer: MixingTrainer, max_samples: int | None):
        super().__init__(trainer, max_samples)
        self._mixing_trainer = trainer

    @property
    def most_samples(self) -> int:
        """Maximum samples of a micro-batch; see `LoadingRules`."""
        return super().most_samples if self._max_samples else max(_MOST_AT_ONCE, super().most_samples)

    @property
    def removes_columns(self) -> bool:
        """Whether columns are removed; see `LoadingRules`."""
        trainer = self._mixing_trainer
        collators = [trainer.data_collator, *(stream.data_collator for stream in trainer.streams)]
        return super().removes_columns and all(goes_by_first(own) for own in collators if own is not None)

    def smaller_cap(self, sizes: str) -> str:
        """Names this trainer's option; see `LoadingRules`."""
        return "max_samples_per_micro_batch={}; the total stays"


class AdaptiveBatchSizeTrainer(MixingTrainer):
    """A Trainer with a batch size that changes: a drop-in replacement for the extension of the same name.

    That extension (github.com/ifiaposto/hf_trainer_with_online_batch_size) is bound to one version of the Trainer and
    does not prefetch. Its scripts run here with a changed import. As in the extension:

    - `epoch` is the number of samples seen over the size of the data set, even if the ends of epochs are dropped, and
      `train_coverage` is the share of the present epoch that was seen. `trainer.state` has `train_coverage`,
      `num_train_examples` and `num_seen_train_examples`.
    - The samples of a rank run in one forward, up to `max_samples_per_micro_batch`.
    - A collator that is not from transformers gets all columns, whatever `remove_unused_columns` says, and
      `compute_loss` gets all of its output; arguments that `forward` does not take are removed when the model is
      called.

    For a mixture of streams use `train_dataset` and `mixing` as in `MixingTrainer`.

    Args:
        batch_size_scheduler: `f(step, batch_size) -> int`, called after every step with the number of steps done and
            the batch size of the last one (at first `per_device_train_batch_size` × `gradient_accumulation_steps`). It
            returns the batch size of the next step, in samples per device.
        callbacks: As for the Trainer.
        *positional: Further arguments of `MixingTrainer`: the model, the training arguments, ...
        **kwargs: Further arguments of `MixingTrainer`, except `batch_size`; `max_samples_per_micro_batch=None` stands
            for 64, or `per_device_train_batch_size` if that is larger.

    Raises:
        TypeError: If `batch_size_scheduler` is not callable, `callbacks` is no list, or `batch_size` is passed.
        ValueError: As for `MixingTrainer`; during the run, with the step, if the function returns no whole number.

    Example:
        >>> trainer = AdaptiveBatchSizeTrainer(  # doctest: +SKIP
        ...     batch_size_scheduler=lambda step, size: size + 1 if step % 5 == 0 else size,
        ...     model=model, args=args, train_dataset=train_dataset, data_collator=data_collator,
        ... )
    """

    def __init__(
        self,
        batch_size_scheduler: Callable[[int, int], int],
        callbacks: list[TrainerCallback] | None = None,
        *positional: Any,
        **kwargs: Any,
    ):
        if "batch_size" in kwargs:
            raise wrong_type("batch_size", "is set by batch_size_scheduler; to pass batch_size, use a MixingTrainer.")
        if callbacks is not None and not isinstance(callbacks, list | tuple):
            raise InvalidTypeError(
                option="callbacks", expected="a list", found=type(callbacks).__name__, hint="Pass model=... by name."
            )
        options: dict[str, Any] = dict(**dict(zip(("model", "args"), positional, strict=False)), **kwargs)
        args = options.pop("args", None)
        args = TrainingArguments("tmp_trainer") if args is None else args  # the Trainer's own default
        options["batch_size"] = PerDevice(batch_size_scheduler, args.world_size)
        super().__init__(options.pop("model", None), args, *positional[2:], callbacks=callbacks, **options)
        if self._built is not None:  # right behind the one that closes steps
            self.callback_handler.callbacks.insert(1, CoverageCallback(self.mixing))

    def _new_rules(self, max_samples: int | None) -> ExtensionRules:
        return ExtensionRules(self, max_samples)

    def compute_loss(self, model: nn.Module, inputs: Any, *args: Any, **kwargs: Any) -> Any:
        """Removes arguments that the model's forward does not take; see `Trainer.compute_loss`."""
        own_model: Any = self.model
        parameters = parameters_of_forward(own_model)
        if all(parameter.kind is not parameter.VAR_KEYWORD for parameter in parameters.values()):
            taken = {*parameters, "labels"}  # labels are for the loss
            inputs = {name: value for name, value in inputs.items() if name in taken}
        return super().compute_loss(model, inputs, *args, **kwargs)
