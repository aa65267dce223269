"""What the losses of a step are compared with: those of a reference model, and those after the optimizer step."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from transformers.utils import logging

from mixer.ledger.recorder import StepResult
from mixer.loading.step import MicroBatch, StepBatch
from mixer.mixture.plan import Plan
from mixer.trainer.observers.excess_loss import ExcessLoss, check_told_apart
from mixer.trainer.observers.loss_after import LossesAfter
from mixer.trainer.observers.measuring import MeasuringMixin
from mixer.trainer.observers.reference_model import ReferenceModel, check_reference
from mixer.trainer.side_runs import SideRuns
from mixer.utils.arrays import FloatArray, Int64Array

logger = logging.get_logger(__name__)


# What the policy sees of it, by column of the ledger's table `comparisons`.
_SEEN_AS = {"excess_loss": "excess_losses", "loss_after": "losses_after"}


class ComparingMixin(MeasuringMixin):
    """A Trainer that compares losses where the policy needs it."""

    _reference_model: nn.Module | None = None
    _excess: ExcessLoss | None = None
    _excess_sums: Tensor | None = None  # of the last step, over all ranks
    _after: LossesAfter | None = None

    def _take_reference(self, reference: nn.Module | None) -> None:
        """Checks a reference model against what the policy needs."""
        is_needed = "excess_loss" in self._policy.needs
        if reference is not None:
            check_reference(reference, self.model)
        if is_needed and reference is None:
            raise ValueError(
                f"Policy {self._policy.name} needs the losses of a reference model on the samples that are trained: "
                "give reference_model=..., a model of the same kind (`mixer doremi` trains one), or give the policy "
                "losses that were recorded of one (reference_losses)."
            )
        if reference is not None and not is_needed:
            logger.warning(
                "reference_model is given, but mixing=%s does not need one ('excess_loss'), so it is not run.",
                self._policy.name,
            )
        self._reference_model = reference if is_needed else None
        self._keeps_items = is_needed

    def train(self, *args: Any, **kwargs: Any) -> Any:
        """Trains, and lets go of what losses were compared with; see `Trainer.train`."""
        try:
            return super().train(*args, **kwargs)
        finally:
            if self._excess is not None:
                self._excess.reference.detach()
            self._excess = self._excess_sums = self._after = None

    def _prepare_for_training(self, *args: Any, **kwargs: Any) -> Any:
        prepared = super()._prepare_for_training(*args, **kwargs)
        if self._mixing is None:
            return prepared
        device, runs = self.args.device, SideRuns(self)
        dtype = torch.float32 if device.type == "mps" else torch.float64
        if self._reference_model is not None:
            self._check_ranks_have_reference(self._reference_model)
            autocast = self.accelerator.autocast
            reference = ReferenceModel(self._reference_model, runs, device, autocast, self._new_tracker)
            self._excess = ExcessLoss(len(self.streams), reference, device, dtype)
        if "loss_after" in self._policy.needs:
            self._after = LossesAfter(runs, device, dtype)
        return prepared

    def _check_ranks_have_reference(self, reference: nn.Module) -> None:
        """Refuses a reference that was not loaded on all ranks: engines that spare memory load on the first alone."""
        if self.args.world_size == 1:
            return
        with torch.no_grad():
            sums = [parameter.detach().double().sum().cpu() for parameter in reference.parameters()]
        own = torch.stack(sums).numpy().view(np.int64) if sums else np.zeros(0, dtype=np.int64)
        if not np.array_equal(self._rank_sync.least(own), self._rank_sync.greatest(own)):
            raise ValueError(
                "reference_model: its weights are not the same on all ranks. With cpu_ram_efficient_loading (FSDP) "
                "from_pretrained loads them on the first rank alone: set that to false, or load the reference model "
                "before TrainingArguments are made."
            )

    # ---- A step ----

    def _begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        super()._begin_step(model, batch)
        for comparison in (self._excess, self._after):
            if comparison is not None:
                comparison.begin()

    def _train_micro_batch(
        self, model: nn.Module, micro: MicroBatch, own_items: int, plan: Plan, num_items: Any, sums: Tensor
    ) -> Tensor:
        if self._after is not None:
            self._after.keep(micro)
        loss = super()._train_micro_batch(model, micro, own_items, plan, num_items, sums)
        if self._excess is not None and self._row_losses is not None:
            items, self._row_losses.item_losses = self._row_losses.item_losses, None
            if own_items:
                self._excess.add(micro, items, self._loss_sum_to_check(micro, plan, loss))
        return loss

    def _loss_sum_to_check(self, micro: MicroBatch, plan: Plan, loss: Tensor) -> Tensor | None:
        """Gives what the item losses of a micro-batch sum up to by its loss, unless it is known to be their sum."""
        first = int(micro.stream_ids[0])
        if self._normalization_of(first).rows_known or not self._factor(
            plan, first
        ):  # of a loss of weight 0 nothing is left
            return None
        counting = self._item_factor(plan, first)
        loss_sum: Tensor = loss * (self._num_divided_by / (counting * self.args.world_size))
        return loss_sum

    def _train_step(
        self, model: nn.Module, batch: StepBatch, num_items: Any, is_synchronised: bool = True
    ) -> tuple[Tensor, Tensor]:
        result = super()._train_step(model, batch, num_items, is_synchronised)
        if self._excess is not None:
            self._excess_sums = self._rank_sync.add_up(self._excess.sums)
        return result

    # ---- What the policy sees of it ----

    def _observed_by_policy(self, batch: StepResult) -> dict[str, Any]:
        """Measures what the policy needs; waits for a GPU."""
        observed = super()._observed_by_policy(batch)
        items = batch.contents.items
        if self._excess_sums is not None:
            observed["excess_losses"] = _means(check_told_apart(self._excess_sums), items)
        if self._after is not None:
            sums = self._rank_sync.add_up(self._after.measure(len(self.streams)))
            # Where no step was taken there is nothing after it.
            is_skipped = self._is_skipped(batch)
            observed["losses_after"] = np.full(len(items), np.nan) if is_skipped else _means(sums, items)
        return observed

    def _is_skipped(self, batch: StepResult) -> bool:
        is_skipped = bool(self.accelerator.optimizer_step_was_skipped)
        return is_skipped or (self._nonfinite == "skip" and len(batch.bad_streams()) > 0)


def compared_in(observed: Mapping[str, Any]) -> dict[str, FloatArray]:
    """Gives what losses were compared with, for the ledger and the log.

    Args:
        observed: What the policy is going to see.

    Returns:
        What there is of it, by column of the ledger's table `comparisons`; copies, which no policy changes.
    """
    return {column: observed[name].copy() for column, name in _SEEN_AS.items() if name in observed}


def _means(sums: Tensor, items: Int64Array) -> FloatArray:
    """Means per item; NaN where there are none, or they are not finite."""
    values = sums.cpu().numpy().astype(np.float64)
    means: FloatArray = np.divide(values, items, out=np.full(len(values), np.nan), where=items > 0)
    means[~np.isfinite(means)] = np.nan
    return means
