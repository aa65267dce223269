"""A training step of the user's: the loop calls ours with whole steps, and ours calls it with each micro-batch."""

import contextlib
import functools
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import Trainer
from transformers.utils.import_utils import is_sagemaker_mp_enabled

from mixer.loading.loaded_step import StepBatch
from mixer.run.class_checks import steps_in_backward
from mixer.run.hf_compat import is_newer
from mixer.run.replaced_methods import replaced
from mixer.utils.errors import wrong_type
from mixer.utils.user_code import definitions, module_of

# The modules of the training steps that were read: TRL's only offload activations around the Trainer's.
_TRLS = {f"trl.trainer.{kind}_trainer" for kind in ("dpo", "reward", "sft")}
_KNOWN = {"mixer.trainer.trainer", "transformers.trainer", *_TRLS}
_PLACE_OF_COUNT = 4  # arguments of `compute_loss(model, inputs, return_outputs, num_items_in_batch)`

Weigh = Callable[[bool, Tensor, bool], Tensor]


def has_own_step(trainer: Trainer) -> bool:
    """Whether a trainer has a training step that `MicroBatchTraining.step` does not reproduce.

    That is a user's, one of a library or a version that was not read, or one that goes backward in its own way.
    """
    if is_sagemaker_mp_enabled() or steps_in_backward(trainer.args) or is_newer():
        return True
    steps = definitions(trainer, "training_step")
    return "training_step" in vars(trainer) or not {module_of(step) for step in steps} <= _KNOWN


class OwnStep:
    """Trains micro-batches by a training step that goes backward by itself, and gets whole steps out of its way.

    Args:
        trainer: The trainer.
        train: Trains a whole step.
    """

    def __init__(self, trainer: Trainer, train: Callable[..., Tensor]):
        self._trainer, self._train, self._step = trainer, train, trainer.training_step

    def replacing(self) -> contextlib.AbstractContextManager[None]:
        """Gives the loop a training step for whole steps."""

        @functools.wraps(self._step)
        def training_step(model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
            step = self._train if isinstance(inputs, StepBatch) else self._step  # called by a callback, say
            return step(model, inputs, num_items_in_batch)

        return replaced(self._trainer, training_step=training_step)

    def run(self, model: nn.Module, inputs: Any, num_items: Any, weigh: Weigh) -> tuple[Tensor, bool]:
        """Runs the training step on a micro-batch.

        Args:
            model: The model as it is trained.
            inputs: The micro-batch, which the step may change.
            num_items: Number of items in the step.
            weigh: Weights a loss, given whether it was computed by `compute_loss`, which gives it the number of items,
                and adds the methods' terms if it is the first.

        Returns:
            The loss, and whether it was computed by `compute_loss`.

        Raises:
            TypeError: If the step has a backward of its own; with the call to use.
        """
        compute_loss, backward = self._trainer.compute_loss, self._trainer.accelerator.backward
        is_given, num_backwards = False, 0

        def counting(*args: Any, **kwargs: Any) -> Any:
            nonlocal is_given
            is_given = num_items is not None
            if len(args) < _PLACE_OF_COUNT and kwargs.get("num_items_in_batch") is None:
                kwargs["num_items_in_batch"] = num_items
            return compute_loss(*args, **kwargs)

        def weighted(loss: Tensor, *args: Any, **kwargs: Any) -> Any:
            nonlocal num_backwards
            num_backwards += 1
            return backward(weigh(is_given, loss, num_backwards == 1), *args, **kwargs)

        with replaced(self._trainer.accelerator, backward=weighted), replaced(self._trainer, compute_loss=counting):
            has_none = not _has_gradient(model)
            loss = self._step(model, inputs, num_items).detach()
        is_hidden = getattr(self._trainer, "is_deepspeed_enabled", False)  # it keeps gradients elsewhere
        if has_none and not num_backwards and not is_hidden and _has_gradient(model):
            text = f"of {type(self._trainer).__name__} computes a gradient without self.accelerator.backward(loss), "
            raise wrong_type(
                "training_step", f"{text}which weights the loss by the micro-batch's share of the step: call that."
            )
        return loss, is_given


def _has_gradient(model: nn.Module) -> bool:
    return any(parameter.grad is not None for parameter in model.parameters())
