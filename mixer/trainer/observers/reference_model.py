"""A model that is not trained: what it loses on the samples that another one is trained on."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from mixer.distributed.shards import shards_of
from mixer.loading.step import MicroBatch
from mixer.models.losses import RowLossReader
from mixer.models.snapshot import Snapshot
from mixer.trainer.side_runs import SideRuns


class ReferenceModel:
    """Runs a reference model on micro-batches: in evaluation mode, without gradients, leaving random states alone.

    The model is moved to the device of the run, unless it was spread over devices when it was loaded, and set to
    evaluation. It is never trained, and no checkpoint holds it.

    Args:
        model: The reference model.
        runs: The runs beside the training.
        device: Where it is run.
        autocast: Gives the context in which the trained model computes, for mixed precision.
        new_tracker: Makes a tracker of a model that reads losses just as that of the training does.
    """

    def __init__(
        self,
        model: nn.Module,
        runs: SideRuns,
        device: torch.device,
        autocast: Callable[[], Any],
        new_tracker: Callable[[nn.Module], RowLossReader],
    ):
        if getattr(model, "hf_device_map", None) is None:
            model.to(device)
        self._modes = [(module, module.training) for module in model.modules()]
        self._model = model.eval()
        # As the Trainer does with its model: keys and values of attention take memory here, and where there is a place
        # for them transformers lets packed samples attend to each other.
        self._config: Any = getattr(model, "config", None)
        self._uses_cache = getattr(self._config, "use_cache", None)
        self._set_cache(False)
        self._runs, self._device, self._autocast = runs, device, autocast
        self._row_losses = new_tracker(model)
        self._row_losses.attach()

    def item_losses(self, micro: MicroBatch) -> Tensor | None:
        """Computes the loss of each item of a micro-batch.

        Args:
            micro: The micro-batch.

        Returns:
            `[num_rows, num_places]`: as `RowLossReader.item_losses`; `None` if they cannot be told apart.
        """
        start = Snapshot(self._model, self._device)
        self._row_losses.listen(micro.inputs)
        try:
            with torch.no_grad(), self._autocast():
                self._runs.forward(micro, self._model)
        except Exception as error:
            error.add_note("While the reference model ran on a micro-batch: it must take the same inputs as the model.")
            raise
        finally:
            start.restore()
            self._row_losses.row_losses()
        items, self._row_losses.item_losses = self._row_losses.item_losses, None
        return items

    def detach(self) -> None:
        """Takes the hooks away and leaves the model as it was, but for the device."""
        self._row_losses.detach()
        for module, mode in self._modes:
            module.training = mode
        self._set_cache(self._uses_cache)

    def _set_cache(self, uses_cache: bool | None) -> None:
        if self._uses_cache is not None:
            self._config.use_cache = uses_cache


def check_reference(reference: object, model: nn.Module | None) -> None:
    """Refuses what is no reference for a model.

    Args:
        reference: What was given as one.
        model: The model that is trained.

    Raises:
        TypeError: If it is no model.
        ValueError: If it shares trainable parameters with the model, or its weights are in shards.
    """
    if not isinstance(reference, nn.Module):
        raise TypeError(
            f"reference_model must be a model (an nn.Module), got a {type(reference).__name__}: load it first, with "
            "AutoModelForCausalLM.from_pretrained(...) or whatever class it is of."
        )
    sharded = shards_of(reference)
    if sharded is not None:
        raise ValueError(
            f"reference_model: {sharded} has its weights in shards, so that it cannot be run by itself. Load it before "
            "TrainingArguments are made, or use stage 2, FSDP2 or DDP."
        )
    if model is None:
        return
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    if any(id(parameter) in trained for parameter in reference.parameters()):
        raise ValueError(
            "reference_model shares parameters with the model that is trained, so that it would be trained too: give a "
            "copy.deepcopy of it."
        )
