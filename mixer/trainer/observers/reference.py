"""A reference model, and the excess of losses over its own."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.utils import logging

from mixer.distributed.gradient_sync import shards_of
from mixer.ledger.recorder import StepResult
from mixer.loading.step import MicroBatch, StepBatch
from mixer.models.loss_normalization import LARGEST_OTHER_SHARE
from mixer.models.row_losses import RowLossReader
from mixer.models.side_state import Snapshot
from mixer.trainer.losses import factor_of
from mixer.trainer.observers.gradients import MeasuringMixin
from mixer.trainer.side_runs import SideRuns
from mixer.utils.arrays import FloatArray, Int64Array

_OWN, _REFERENCE = -2, -1  # entries after those of the streams: micro-batches with unknown items
logger = logging.get_logger(__name__)
# Names for the policy, by column of the ledger's table `comparisons`.
_SEEN_AS = {"excess_loss": "excess_losses", "loss_after": "losses_after"}


class ReferenceModel:
    """Runs a reference model on micro-batches: in evaluation mode, without gradients, with random states unchanged.

    The model is moved to the device of the run, unless it was loaded onto several devices. It is never trained, and no
    checkpoint contains it.

    Args:
        model: The reference model.
        runs: Runs of the model outside of training.
        device: The device to run on.
        autocast: Returns the mixed-precision context of the trained model.
        new_tracker: Makes a reader of row losses like that of the training.
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
        # As the Trainer does with its model: the key-value cache takes memory, and with it transformers lets packed
        # samples attend to each other.
        self._config: Any = getattr(model, "config", None)
        self._uses_cache = getattr(self._config, "use_cache", None)
        self._set_cache(False)
        self._runs, self._device, self._autocast = runs, device, autocast
        self._row_losses = new_tracker(model)
        self._row_losses.attach()

    def item_losses(self, micro: MicroBatch) -> Tensor | None:
        """Computes the loss of each item of a micro-batch.

        Returns:
            `[num_rows, num_places]`: as `RowLossReader.item_losses`; `None` if items cannot be separated.
        """
        start = Snapshot(self._model, self._device)
        self._row_losses.listen(micro.inputs)
        try:
            with torch.no_grad(), self._autocast():
                self._runs.forward(micro, self._model)
        except Exception as error:
            error.add_note("In the reference model, which must take the same inputs as the trained model.")
            raise
        finally:
            start.restore()
            self._row_losses.row_losses()
        items, self._row_losses.item_losses = self._row_losses.item_losses, None
        return items

    def detach(self) -> None:
        """Removes the hooks and restores the model, except for its device."""
        self._row_losses.detach()
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
            f"reference_model must be a model (an nn.Module), got a {type(reference).__name__}: load it first, with "
            f"AutoModelForCausalLM.from_pretrained(...) or its own class."
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
            "reference_model shares parameters with the model that is trained, so it would be trained too: pass a "
            "copy.deepcopy of it."
        )


class ExcessLoss:
    """Adds up `max(ℓ(x) − ℓ_ref(x), 0)` over the items `x` of a step, per stream.

    An item is a loss term: a token, or a row if a row has one label. As in DoReMi (arXiv 2305.10429, Algorithm 1), the
    difference of each item is clipped, not their mean: these differ if a model loses less than the reference on some
    items and more on others.

    Args:
        num_streams: Number of streams.
        reference: The reference model.
        device: The device of the sums.
        dtype: The type of the sums.
    """

    def __init__(self, num_streams: int, reference: ReferenceModel, device: torch.device, dtype: torch.dtype):
        self.reference = reference
        self._start = torch.zeros(num_streams + 2, dtype=dtype, device=device)
        self.sums = self._start.clone()

    def begin(self) -> None:
        """Begins a step, or repeats it."""
        self.sums = self._start.clone()

    def add(self, micro: MicroBatch, items: Tensor | None, loss_sum: Tensor | None) -> None:
        """Adds a micro-batch that was trained.

        Args:
            micro: The micro-batch.
            items: `[num_rows, num_places]`: the loss of each item, 0 for ignored labels; `None` if unknown.
            loss_sum: A scalar: the sum that the items must have if they are the terms of the loss; `None` if that is
                known.
        """
        ids = torch.from_numpy(micro.stream_ids).to(self.sums.device)
        is_one_stream = bool((micro.stream_ids == micro.stream_ids[0]).all())
        if items is None or not (is_one_stream or len(items) == len(ids)):
            self.sums[_OWN] += 1
            return
        items = items.to(self.sums)
        if loss_sum is not None:
            self.sums[_OWN] += _is_other(items.sum(), loss_sum.to(self.sums))
        reference = self.reference.item_losses(micro)
        if reference is None or reference.shape != items.shape:
            self.sums[_REFERENCE] += 1
            return
        excess = excess_of(items, reference.to(self.sums)).sum(dim=1)
        if is_one_stream:
            self.sums[ids[0]] += excess.sum()
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


def check_told_apart(sums: Tensor) -> Tensor:
    """Refuses sums over items that could not be separated; the same on all ranks once the sums are global.

    Args:
        sums: `[num_streams + 2]`: `ExcessLoss.sums`, summed over all ranks.

    Returns:
        `[num_streams]`: the streams' sums.

    Raises:
        ValueError: If some items were unknown.
    """
    own, reference = sums[_OWN:].tolist()
    if own > 0:
        raise ValueError(
            "The policy needs the loss of each item (token or row) for the excess over the reference model, but this "
            "model's loss is not the sum of separate terms. Use a model whose forward computes a cross entropy over "
            "its labels, or returns logits for them; or pass recorded losses of the reference to the policy "
            "(reference_losses), for which per-stream losses are enough."
        )
    if reference > 0:
        raise ValueError(
            "reference_model has no loss on the same items (tokens or rows) as the trained model. Use one with the "
            "same head and tokenizer, such as a model trained with the same recipe; or pass its recorded losses to the "
            "policy (reference_losses)."
        )
    return sums[:_OWN]


def _is_other(actual: Tensor, expected: Tensor) -> Tensor:
    both_finite = actual.isfinite() & expected.isfinite()
    return both_finite & ((actual - expected).abs() > LARGEST_OTHER_SHARE * expected.abs())


class LossesAfter:
    """Runs the micro-batches of a step a second time after its optimizer step, without gradients.

    Both losses of FAMO (arXiv 2306.03792, Algorithm 1) are of the same batch. The second forward repeats the first as
    closely as possible: in training mode and with the same random numbers, so that dropout drops the same activations
    and only the step makes a difference. In evaluation mode every loss would fall by the effect of dropout, more in
    some streams than in others. Random states and running statistics are restored afterwards.

    Until then the inputs of the step are kept, and the state of the random generators for each micro-batch.

    Args:
        runs: Runs of the model outside of training.
        device: The device of the model.
        dtype: The type of the sums.
    """

    def __init__(self, runs: SideRuns, device: torch.device, dtype: torch.dtype):
        self._runs, self._device, self._dtype = runs, device, dtype
        self._kept: list[tuple[MicroBatch, Snapshot]] = []

    def begin(self) -> None:
        """Begins a step, or repeats it."""
        self._kept = []

    def keep(self, micro: MicroBatch) -> None:
        """Keeps a micro-batch and the random state; called right before it is trained."""
        self._kept.append((micro, Snapshot(None, self._device)))

    def measure(self, num_streams: int) -> Tensor:
        """Runs the kept micro-batches and releases them; all ranks have to call it.

        Returns:
            `[num_streams]`: this rank's sums of the item losses of each stream, on the device; NaN if those of several
            streams cannot be separated.
        """
        sums = torch.zeros(num_streams, dtype=self._dtype, device=self._device)
        kept, self._kept = self._kept, []
        with self._runs.without_gradients(training=True):
            for micro, start in kept:
                start.restore()
                items = self._runs.items(micro)
                mean, rows = self._runs.mean_and_row_losses(micro)
                if not micro.is_padding and int(items.sum()):
                    _add(sums, micro, int(items.sum()), mean, rows)
        return sums


def _add(sums: Tensor, micro: MicroBatch, num_items: int, mean: Tensor, rows: Tensor | None) -> None:
    ids = torch.from_numpy(micro.stream_ids).to(sums.device)
    if rows is not None:
        sums.index_add_(0, ids, rows.to(sums))
        return
    is_single = bool((micro.stream_ids == micro.stream_ids[0]).all())
    sums[ids] += mean.to(sums) * num_items if is_single else float("nan")


class ComparingMixin(MeasuringMixin):
    """A Trainer that compares losses if the policy needs it."""

    _reference_model: nn.Module | None = None
    _excess: ExcessLoss | None = None
    _excess_sums: Tensor | None = None  # of the last step, over all ranks
    _after: LossesAfter | None = None

    def _take_reference(self, reference: nn.Module | None) -> None:
        """Checks a reference model against the needs of the policy."""
        is_needed = "excess_loss" in self._policy.needs
        if reference is not None:
            check_reference(reference, self.model)
        if is_needed and reference is None:
            raise ValueError(
                f"Policy {self._policy.name} needs the losses of a reference model on the trained samples: pass "
                f"reference_model=..., a model of the same kind (`mixer doremi` trains one), or pass its recorded "
                f"losses to the policy (reference_losses)."
            )
        if reference is not None and not is_needed:
            logger.warning(
                "reference_model is set, but mixing=%s does not need one ('excess_loss'), so it is not run.",
                self._policy.name,
            )
        self._reference_model = reference if is_needed else None
        self._keeps_items = is_needed

    def _release_run(self) -> None:
        super()._release_run()
        if self._excess is not None:
            self._excess.reference.detach()
        self._excess = self._excess_sums = self._after = None

    def _prepare_run(self) -> None:
        super()._prepare_run()
        device, dtype, runs = self.args.device, self._sum_dtype, SideRuns(self)
        if self._reference_model is not None:
            self._check_ranks_have_reference(self._reference_model)
            autocast = self.accelerator.autocast
            reference = ReferenceModel(self._reference_model, runs, device, autocast, self._new_tracker)
            self._excess = ExcessLoss(len(self.streams), reference, device, dtype)
        if "loss_after" in self._policy.needs:
            self._after = LossesAfter(runs, device, dtype)

    def _check_ranks_have_reference(self, reference: nn.Module) -> None:
        """Refuses a reference loaded on the first rank only, as engines that save memory do."""
        if self.args.world_size == 1:
            return
        with torch.no_grad():
            sums = [parameter.detach().double().sum().cpu() for parameter in reference.parameters()]
        own = torch.stack(sums).numpy().view(np.int64) if sums else np.zeros(0, dtype=np.int64)
        if not np.array_equal(self._rank_sync.least(own), self._rank_sync.greatest(own)):
            raise ValueError(
                "reference_model: its weights are not the same on all ranks. With cpu_ram_efficient_loading (FSDP) "
                "from_pretrained loads them on the first rank only: set that to false, or load the reference model "
                "before TrainingArguments are created."
            )

    # ---- A step ----

    def _begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        super()._begin_step(model, batch)
        for comparison in (self._excess, self._after):
            if comparison is not None:
                comparison.begin()

    def _train_micro_batch(self, model: nn.Module, micro: MicroBatch, own_items: int, sums: Tensor) -> Tensor:
        if self._after is not None:
            self._after.keep(micro)
        loss = super()._train_micro_batch(model, micro, own_items, sums)
        if self._excess is not None:
            items, self._tracker.item_losses = self._tracker.item_losses, None
            if own_items:
                self._excess.add(micro, items, self._loss_sum_to_check(micro, loss))
        return loss

    def _loss_sum_to_check(self, micro: MicroBatch, loss: Tensor) -> Tensor | None:
        """Returns the sum of a micro-batch's item losses by its loss, unless rows are known to be its terms."""
        first = int(micro.stream_ids[0])
        if self._normalization_of(first).rows_known or not self._factor(first):  # weight 0 leaves no loss
            return None
        counting = factor_of(self._item_factors, first)
        loss_sum: Tensor = loss * (self._num_divided_by / (counting * self.args.world_size))
        return loss_sum

    def _train_step(self, model: nn.Module, batch: StepBatch, is_synchronised: bool = True) -> tuple[Tensor, Tensor]:
        result = super()._train_step(model, batch, is_synchronised)
        if self._excess is not None:
            self._excess_sums = self._rank_sync.add_up(self._excess.sums)
        return result

    # ---- Observations for the policy ----

    def _observed_by_policy(self, batch: StepResult) -> dict[str, Any]:
        """Measures what the policy needs; waits for a GPU."""
        observed = super()._observed_by_policy(batch)
        items = batch.contents.items
        if self._excess_sums is not None:
            observed["excess_losses"] = _means(check_told_apart(self._excess_sums), items)
        if self._after is not None:
            sums = self._rank_sync.add_up(self._after.measure(len(self.streams)))
            # Without a step there is no loss after it.
            is_skipped = bool(self.accelerator.optimizer_step_was_skipped) or (
                self._nonfinite == "skip" and len(batch.bad_streams()) > 0
            )
            observed["losses_after"] = np.full(len(items), np.nan) if is_skipped else _means(sums, items)
        return observed


def compared_in(observed: Mapping[str, Any]) -> dict[str, FloatArray]:
    """Returns the compared losses in the policy's observations, for the ledger and the log.

    Returns:
        Copies, by column of the ledger's table `comparisons`.
    """
    return {column: observed[name].copy() for column, name in _SEEN_AS.items() if name in observed}


def _means(sums: Tensor, items: Int64Array) -> FloatArray:
    """Returns means per item; NaN without items, or if not finite."""
    values = sums.cpu().numpy().astype(np.float64)
    means: FloatArray = np.divide(values, items, out=np.full(len(values), np.nan), where=items > 0)
    means[~np.isfinite(means)] = np.nan
    return means
