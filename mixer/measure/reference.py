"""A reference model, and the excess of losses over its own."""

from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.utils import logging

from mixer.distributed.gradient_sync import shards_of
from mixer.loading.loaded_step import MicroBatch, StepBatch, StepResult
from mixer.losses.normalization import LARGEST_OTHER_SHARE
from mixer.measure.auxiliary_passes import AuxiliaryPasses
from mixer.measurements import ExcessLoss, LossAfter, Results
from mixer.models.side_state import Snapshot
from mixer.policies.contract import Policy
from mixer.run.hooks import ForwardResult, StepHook
from mixer.utils.arrays import FloatArray, Int64Array
from mixer.utils.device import to_host

_OWN, _REFERENCE = -2, -1  # entries after those of the streams: micro-batches with unknown items
logger = logging.get_logger(__name__)


class ReferenceModel:
    """Runs a reference model on micro-batches: in evaluation mode, without gradients, with random states unchanged.

    The model is moved to the device of the run, unless it was loaded onto several devices. It is never trained, and no
    checkpoint contains it.

    Args:
        model: The reference model.
        passes: Run the model outside of training.
    """

    def __init__(self, model: nn.Module, passes: AuxiliaryPasses):
        if getattr(model, "hf_device_map", None) is None:
            model.to(passes.trainer.args.device)
        self._modes = [(module, module.training) for module in model.modules()]
        self._model = model.eval()
        # As the Trainer does with its model: the key-value cache takes memory, and with it transformers lets packed
        # samples attend to each other.
        self._config: Any = getattr(model, "config", None)
        self._uses_cache = getattr(self._config, "use_cache", None)
        self._set_cache(False)
        self._passes, self._reader = passes, passes.losses.new_reader(model)
        self._reader.attach()

    def item_losses(self, micro: MicroBatch) -> Tensor | None:
        """Computes the loss of each item of a micro-batch.

        Returns:
            `[num_rows, num_places]`: as `Heard.items`; `None` if items cannot be separated.
        """
        start = Snapshot(self._model, self._passes.trainer.args.device)
        self._reader.listen(micro.inputs)
        try:
            with torch.no_grad(), self._passes.trainer.accelerator.autocast():
                self._passes.forward(micro, self._model)
        except Exception as error:
            error.add_note("In the reference model, which must take the same inputs as the trained model.")
            raise
        finally:
            start.restore()
            found = self._reader.take_losses()
        return found.items

    def detach(self) -> None:
        """Removes the hooks and restores the model, except for its device."""
        self._reader.detach()
        for module, mode in self._modes:
            module.training = mode
        self._set_cache(self._uses_cache)

    def _set_cache(self, uses_cache: bool | None) -> None:
        if self._uses_cache is not None:
            self._config.use_cache = uses_cache


def check_reference(reference: object, model: nn.Module | None) -> None:
    """Checks a reference model against the trained model.

    Raises:
        TypeError: If it is no model.
        ValueError: If it shares trainable parameters with the model, or its weights are sharded.
    """
    if not isinstance(reference, nn.Module):
        raise TypeError(
            f"reference_model must be a model, got a {type(reference).__name__}: load it first, with from_pretrained."
        )
    if (sharded := shards_of(reference)) is not None:
        raise ValueError(
            f"reference_model: {sharded} has sharded its weights, so it cannot run alone. Load it before "
            f"TrainingArguments are created, or use stage 2, FSDP2 or DDP."
        )
    if model is None:
        return
    trained = {id(parameter) for parameter in model.parameters() if parameter.requires_grad}
    if any(id(parameter) in trained for parameter in reference.parameters()):
        raise ValueError(
            "reference_model shares parameters with the model that is trained: pass a copy.deepcopy of it."
        )


class ExcessLossHook(StepHook):
    """Adds up `max(ℓ(x) − ℓ_ref(x), 0)` over the items `x` of a step, per stream.

    An item is a loss term: a token, or a row if a row has one label. As in DoReMi (arXiv 2305.10429, Algorithm 1), the
    difference of each item is clipped, not their mean: these differ if a model loses less than the reference on some
    items and more on others.

    Args:
        model: The reference model.
        passes: Run the model outside of training.
    """

    reference: ReferenceModel | None = None  # in a run

    def __init__(self, model: nn.Module, passes: AuxiliaryPasses):
        self._model, self._passes, self._ranks = model, passes, passes.ranks
        self.sums = torch.zeros(len(passes.plan.streams) + 2, dtype=passes.losses.sum_dtype)

    def prepare(self, model: nn.Module) -> None:
        """Moves the reference model to the device of the run; see `StepHook.prepare`.

        Raises:
            ValueError: If its weights are not the same on all ranks.
        """
        self._check_ranks()
        self.reference = ReferenceModel(self._model, self._passes)
        self.sums = self.sums.to(self._passes.trainer.args.device)

    def _check_ranks(self) -> None:
        """Refuses a reference loaded on the first rank only, as engines that save memory do."""
        if self._ranks.world_size == 1:
            return
        with torch.no_grad():
            sums = [parameter.detach().double().sum().cpu() for parameter in self._model.parameters()]
        own = torch.stack(sums).numpy().view(np.int64) if sums else np.zeros(0, dtype=np.int64)
        if not np.array_equal(self._ranks.all_reduce_min(own), self._ranks.all_reduce_max(own)):
            raise ValueError(
                "reference_model: its weights are not the same on all ranks, as with cpu_ram_efficient_loading (FSDP): "
                "set that to false, or load the model before TrainingArguments are created."
            )

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Begins a step, or repeats it; see `StepHook.begin_step`."""
        self.sums = torch.zeros_like(self.sums)

    def end_micro_batch(self, model: nn.Module, trained: ForwardResult, ends_priority: bool) -> None:
        """Adds a micro-batch; see `StepHook.end_micro_batch`."""
        if trained.num_items:
            self.add(trained.micro, trained.item_losses, trained.loss_sum)

    def end_backward(self, model: nn.Module) -> None:
        """Adds up the ranks' sums; see `StepHook.end_backward`."""
        self.sums = self._ranks.add_up(self.sums)

    def observe(self, result: StepResult) -> Results:
        """Returns the mean excess of each stream; waits for a GPU. See `StepHook.observe`."""
        sums = check_separable(to_host([self.sums])[0])
        return {ExcessLoss: _means(sums, result.contents.items)}

    def release(self) -> None:
        """Restores the reference model; see `StepHook.release`."""
        if self.reference is not None:
            self.reference.detach()
        self.reference = None

    def add(self, micro: MicroBatch, items: Tensor | None, loss_sum: Tensor | None) -> None:
        """Adds a micro-batch that was trained.

        Args:
            micro: The micro-batch.
            items: `[num_rows, num_places]`: the loss of each item, 0 for ignored labels; `None` if unknown.
            loss_sum: A scalar: the sum that the items must have if they are the terms of the loss; `None` if that is
                known.
        """
        ids = torch.from_numpy(micro.stream_ids).to(self.sums.device, non_blocking=True)
        is_one_stream = bool((micro.stream_ids == micro.stream_ids[0]).all())
        if items is None or not (is_one_stream or len(items) == len(ids)):
            self.sums[_OWN] += 1
            return
        items = items.to(self.sums)
        if loss_sum is not None:
            self.sums[_OWN] += _is_other(items.sum(), loss_sum.to(self.sums))
        assert self.reference is not None, "there is a reference in every run"  # noqa: S101
        reference = self.reference.item_losses(micro)
        if reference is None or reference.shape != items.shape:
            self.sums[_REFERENCE] += 1
            return
        excess = excess_of(items, reference.to(self.sums)).sum(dim=1)
        if is_one_stream:
            self.sums[micro.first_stream] += excess.sum()
        else:
            self.sums.index_add_(0, ids, excess)


def excess_of(items: Tensor, reference: Tensor) -> Tensor:
    """Computes the excess of losses over those of a reference.

    Args:
        items: Losses, of any shape.
        reference: Those of the reference, of the same shape.

    Returns:
        `max(items − reference, 0)`; NaN where either is not finite.

    Example:
        >>> excess_of(torch.tensor([3.0, 1.0, 2.0]), torch.tensor([1.0, 4.0, float("inf")])).tolist()
        [2.0, 0.0, nan]
    """
    excess = (items - reference).clamp(min=0.0)
    # An infinite loss of the reference does not mean that the model is good.
    return torch.where(items.isfinite() & reference.isfinite(), excess, torch.nan)


def check_separable(sums: FloatArray) -> FloatArray:
    """Refuses sums over items that could not be separated; the same on all ranks once the sums are global.

    Args:
        sums: `[num_streams + 2]`: `ExcessLossHook.sums`, summed over all ranks.

    Returns:
        `[num_streams]`: the streams' sums.

    Raises:
        ValueError: If some items were unknown.
    """
    own, reference = sums[_OWN:].tolist()
    if own > 0:
        raise ValueError(
            "The policy needs the loss of each item (token or row), and this model's is not the sum of separate terms. "
            "Use one whose forward computes a cross entropy over labels, or returns logits; or pass the reference's "
            "recorded losses to the policy (reference_losses)."
        )
    if reference > 0:
        raise ValueError(
            "reference_model has no loss on the same items (tokens or rows) as the trained model. Use one with the "
            "same head and tokenizer, or pass its recorded losses to the policy (reference_losses)."
        )
    return sums[:_OWN]


def _is_other(actual: Tensor, expected: Tensor) -> Tensor:
    both_finite = actual.isfinite() & expected.isfinite()
    return both_finite & ((actual - expected).abs() > LARGEST_OTHER_SHARE * expected.abs())


class LossAfterHook(StepHook):
    """Runs the micro-batches of a step a second time after its optimizer step, without gradients.

    Both losses of FAMO (arXiv 2306.03792, Algorithm 1) are of the same batch. The second forward repeats the first as
    closely as possible: in training mode and with the same random numbers, so that dropout drops the same activations
    and only the step makes a difference. In evaluation mode every loss would fall by the effect of dropout, more in
    some streams than in others. Random states and running statistics are restored afterwards.

    Until then the inputs of the step are kept, and the state of the random generators for each micro-batch.

    Args:
        passes: Run the model outside of training.
    """

    def __init__(self, passes: AuxiliaryPasses):
        self._passes, self._device = passes, passes.trainer.args.device
        self._kept: list[tuple[MicroBatch, Snapshot]] = []

    def begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Begins a step, or repeats it; see `StepHook.begin_step`."""
        self._kept = []

    def begin_micro_batch(self, trained: ForwardResult, is_synchronised: bool) -> None:
        """Keeps a micro-batch and the random state; see `StepHook.begin_micro_batch`."""
        self._kept.append((trained.micro, Snapshot(None, self._device)))

    def observe(self, result: StepResult) -> Results:
        """Returns each stream's loss on the samples of the step; waits for a GPU. See `StepHook.observe`."""
        items = result.contents.items
        sums = self._passes.ranks.add_up(self.measure(len(items)))
        if self._passes.was_skipped:
            return {LossAfter: np.full(len(items), np.nan)}  # without a step there is no loss after it
        return {LossAfter: _means(to_host([sums])[0], items)}

    def cancel(self) -> None:
        """Lets go of the step; see `StepHook.cancel`."""
        self._kept = []

    def measure(self, num_streams: int) -> Tensor:
        """Runs the kept micro-batches and releases them; all ranks have to call it.

        Returns:
            `[num_streams]`: this rank's sums of the item losses of each stream, on the device; NaN if those of several
            streams cannot be separated.
        """
        sums = torch.zeros(num_streams, dtype=self._passes.losses.sum_dtype, device=self._device)
        kept, self._kept = self._kept, []
        with self._passes.without_gradients(training=True):
            for micro, start in kept:
                start.restore()
                items = self._passes.items(micro)
                mean, rows = self._passes.mean_and_row_losses(micro)
                if not micro.is_padding and int(items.sum()):
                    _add(sums, micro, int(items.sum()), mean, rows)
        return sums


def _add(sums: Tensor, micro: MicroBatch, num_items: int, mean: Tensor, rows: Tensor | None) -> None:
    ids = torch.from_numpy(micro.stream_ids).to(sums.device, non_blocking=True)
    if rows is not None:
        sums.index_add_(0, ids, rows.to(sums))
        return
    is_single = bool((micro.stream_ids == micro.stream_ids[0]).all())
    sums[ids] += mean.to(sums) * num_items if is_single else float("nan")


def needed_reference(
    reference: nn.Module | None, model: nn.Module | None, policy: Policy, is_needed: bool
) -> nn.Module | None:
    """Checks a reference model against the needs of a run.

    Args:
        reference: The reference model, if there is one.
        model: The model that is trained.
        policy: The policy.
        is_needed: Whether excess losses are asked for.

    Returns:
        The reference model; `None` if none is needed.

    Raises:
        TypeError: If it is no model.
        ValueError: If it is needed and missing, or cannot be used.
    """
    if reference is not None:
        check_reference(reference, model)
    if is_needed and reference is None:
        raise ValueError(
            f"Policy {policy.name} needs the losses of a reference model: pass reference_model=..., a trained model of "
            "the same kind, or its recorded losses to the policy (reference_losses)."
        )
    if reference is not None and not is_needed:
        logger.warning(
            "reference_model is set, but mixing=%s does not need one (ExcessLoss), so it is not run.", policy.name
        )
    return reference if is_needed else None


def _means(sums: FloatArray, items: Int64Array) -> FloatArray:
    """Returns means per item; NaN without items, or if not finite."""
    means: FloatArray = np.divide(sums, items, out=np.full(len(sums), np.nan), where=items > 0)
    means[~np.isfinite(means)] = np.nan
    return means
