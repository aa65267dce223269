"""Forwards that determine, before a run's first step, how its losses are normalised."""

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

import mixer.losses.normalization as loss_forms
from mixer.loading.collate import batch_mapping
from mixer.loading.loaded_step import StepBatch
from mixer.losses.stream_losses import StreamLosses
from mixer.losses.trial_rows import rows_to_try
from mixer.models.inputs import inner_model
from mixer.models.row_losses import items_per_row, labels_can_shift
from mixer.models.side_state import model_restored
from mixer.models.trl_metrics import metrics_restored
from mixer.run.hf_compat import prepare_inputs
from mixer.run.state import Basis
from mixer.trainer.confirmation import StepConfirmation
from mixer.trainer.out_of_memory import Recovery
from mixer.trainer.stream_separation import StreamSeparation
from mixer.utils.device import is_out_of_memory
from mixer.utils.text import in_words
from mixer.utils.user_code import library_of

logger = logging.get_logger(__name__)

Trial = Callable[[StepBatch, int], loss_forms.Tried | loss_forms.KindFound | None]

# A tentative normalisation is tried again in this many steps whose rows have unequal numbers of items.
_MOST_UNEVEN = 32


class LossTrials:
    """Determines how losses are normalised, together with the other ranks.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        losses: The losses of the streams.
        confirmation: Loads steps.
        separation: Separates streams into micro-batches of their own.
        recovery: Repeats a trial that does not fit into memory.
    """

    def __init__(
        self,
        basis: Basis,
        losses: StreamLosses,
        confirmation: StepConfirmation,
        separation: StreamSeparation,
        recovery: Recovery,
    ):
        self._trainer, self._plan, self._run, self._ranks = basis
        self._losses, self._confirmation, self._separation, self._recovery = losses, confirmation, separation, recovery
        self.begin_run()
        self._num_uneven = 0  # steps with unequal rows while a normalisation is tentative
        self._has_recounted = False  # whether the loss shifts labels unlike its model
        self._failure: Exception | None = None  # of a trial with other rows than a micro-batch has
        self._last_tried: list[
            loss_forms.Seen
        ] = []  # the last loss of unknown kind, for some rows and for their halves

    def begin_run(self) -> None:
        """Begins a run."""
        self.is_unlike = False  # whether the losses of rows did not explain that of the last step
        self._next_look: dict[int, int] = {}  # by kind of loss: the step from which on this is a reason to try again

    def normalized_step(self, batch: StepBatch) -> StepBatch:
        """Determines what is unknown of a step's losses; returns the step, which may have been loaded again."""
        unknown = self._unknown_kinds(batch)
        return self._find_normalizations(batch, unknown) if unknown else batch

    def _unknown_kinds(self, batch: StepBatch) -> list[int]:
        """Returns the kinds of loss in a step whose normalisation is unknown.

        A tentative one is tried again now and then, but not in a step that could not show anything new of it. A settled
        one is tried again too: at the start, losses of all kinds look like means, because all terms are alike.
        """
        known, plan, is_even = self._losses.normalizations, batch.plan, self._run.step.counts.is_even
        kinds = np.flatnonzero(plan.counts).tolist() if self._losses.differ else [0]
        tentative = [kind for kind in kinds if kind in known and known[kind].is_tentative]
        tries_again = plan.step & (plan.step - 1) == 0  # after 1, 2, 4, 8, ... steps
        if tentative and not is_even:
            self._num_uneven += 1
            tries_again |= self._num_uneven <= _MOST_UNEVEN
        # Rows with equal items say nothing new of a loss whose row losses are its mean, by items and by rows.
        are_clear = {kind for kind in tentative if is_even and known[kind].rows_known and not known[kind].is_guess}
        again = [kind for kind in tentative if tries_again and kind not in are_clear]
        again += [kind for kind in kinds if kind in known and self._is_doubtful(kind, known[kind], plan.step)]
        return [kind for kind in kinds if kind not in known or kind in again]

    def _is_doubtful(self, kind: int, known: loss_forms.LossNormalization, step: int) -> bool:
        """Whether a settled normalisation may have been a coincidence: rows show it in every step, parts do not."""
        if not (known.rows_known or self._separation.is_needless):  # after steps whose rows were mixed up
            return True
        if known.is_tentative or known.kind == "other":
            return False
        if known.rows_known:
            return self.is_unlike and step >= self._next_look.get(kind, 0)
        return not self._is_stock and step & (step - 1) == 0

    def _find_normalizations(self, batch: StepBatch, kinds: Sequence[int]) -> StepBatch:
        """Determines how losses are normalised; reloads the step by stream if rows cannot be separated."""
        losses = self._losses
        losses.start_reading()
        items_were = [losses.normalization_of(kind).counts_rows for kind in kinds]
        for kind in kinds:
            batch, normalization = self._find_normalization(batch, kind)
            if normalization is not None:
                losses.normalizations[kind] = self._revised(kind, normalization, batch.plan.step)
        loader, known = self._run.present_loader, losses.normalizations.values()
        is_open = any(one.is_tentative or not one.rows_known for one in known) or loader.cap.max_samples == 1
        loader.keeps_samples = self._recovery.is_on or self._plan.keeps_samples or is_open
        if all(one.rows_known for one in known) or self._separation.is_needless:
            if items_were == [losses.normalization_of(kind).counts_rows for kind in kinds]:
                return batch
            return self._confirmation.recount(batch)  # its items have changed
        self._separation.separate("The loss of this model cannot be separated by row")
        return self._confirmation.reload(batch)

    def _revised(self, kind: int, found: loss_forms.LossNormalization, step: int) -> loss_forms.LossNormalization:
        """Keeps what was settled before, unless a later trial shows otherwise."""
        before = self._losses.normalizations.get(kind)
        if before is None or before.is_tentative:
            return found
        self._next_look[kind] = 2 * step
        return before if found.is_tentative or found.is_guess else found

    def _find_normalization(self, batch: StepBatch, kind: int) -> tuple[StepBatch, loss_forms.LossNormalization | None]:
        """Determines how the losses of one kind are normalised."""
        batch, seen = self._trial_of_all_ranks(batch, kind, self._try_normalization)
        tried, found = [loss_forms.Tried(*one) for one in seen], None
        if any(one.needs_kind for one in tried):
            batch, seen = self._trial_of_all_ranks(batch, kind, self._try_kind)
            found = [loss_forms.KindFound(*one) for one in seen]
            if loss_forms.counts_other_items(found) and not (self._has_recounted or self._losses.differ):
                self._has_recounted = True
                self._losses.count_other_labels()
                return self._find_normalization(self._confirmation.recount(batch), kind)
        normalization = loss_forms.decide(tried, self._trainer.args.world_size, found)
        if normalization is not None and normalization.is_guess and not normalization.counts_items:
            normalization = self._as_trainer_would(kind, normalization)
        if normalization is not None and normalization.kind == "other" and self._trainer.is_world_process_zero():
            self._warn_of_other_loss(kind, normalization)
        return batch, normalization

    def _warn_of_other_loss(self, kind: int, normalization: loss_forms.LossNormalization) -> None:
        """Warns of a loss whose gradient on the whole batch cannot be computed from micro-batches."""
        logger.warning(
            "%s is neither a sum nor a mean over tokens or rows: for some rows it is %.4g, for their halves %.4g and "
            "%.4g. A step's gradient is the mean of its micro-batches' gradients, weighted by their %s (the Trainer's: "
            "equally). For that of the whole batch use one micro-batch (per_device_train_batch_size), on one rank.",
            self._losses.name(kind),
            *(seen.loss for seen in self._last_tried),
            "share of num_items_in_batch" if normalization.counts_items else "labels",
        )

    def _as_trainer_would(self, kind: int, guess: loss_forms.LossNormalization) -> loss_forms.LossNormalization:
        """Weights rows alike if a trial failed on any rank, as the Trainer weights micro-batches of one row."""
        failure, self._failure = self._failure, None
        if not self._ranks.max_over_ranks(int(failure is not None)):
            return guess
        if failure is not None and kind not in self._losses.normalizations:
            logger.warning(
                "How %s is normalised could not be found out: of other rows than a micro-batch's it fails (%s). Every "
                "row counts alike, as the Trainer accumulates. To divide by tokens, divide by num_items_in_batch.",
                *(self._losses.name(kind), in_words(failure)),
            )
        return replace(guess, kind="row mean", has_row_means=guess.rows_known, is_tentative=False)

    # ---- A trial ----

    def _trial_of_all_ranks(self, batch: StepBatch, kind: int, trial: Trial) -> tuple[StepBatch, list[Any]]:
        """Gathers what ranks see in a trial; returns the step too, which may have been split again."""
        batch, own = self._recovery.run_forwards(lambda split: (split, self._own_trial(split, kind, trial)), batch)
        return batch, [one for one in self._ranks.gather(own) if one is not None]

    def _own_trial(self, batch: StepBatch, kind: int, trial: Trial) -> loss_forms.Tried | loss_forms.KindFound | None:
        """Returns what this rank sees in a trial; `None` if that is nothing.

        All ranks run the model equally often in a trial: a forward may be a collective.
        """
        losses = self._losses
        of_kind = [losses.kind(int(micro.stream_ids[0])) == kind for micro in batch.micro_batches]
        # A rank without such a micro-batch runs another one and abstains.
        number = of_kind.index(True) if any(of_kind) else 0
        micro = batch.micro_batches[number]
        counts = any(of_kind) and not micro.is_padding
        with losses.function_of(int(micro.stream_ids[0])), losses.naming_streams(micro), self._state_restored():
            seen = trial(batch, number)
        return seen if counts else None

    @contextlib.contextmanager
    def _state_restored(self) -> Iterator[None]:
        """Restores the model, the random generators and the arguments after a trial."""
        trainer = self._trainer
        inner = self._losses.unwrapped_model
        restored = model_restored(trainer.model_wrapped, trainer.args, training=False, inner=inner)
        with metrics_restored(trainer), restored, torch.no_grad():
            yield

    def _loss(self, inputs: Mapping[str, Any], num_items: int, averages: bool = True) -> Tensor:
        """Computes the loss of a micro-batch as the Trainer does."""
        self._trainer.args.average_tokens_across_devices = averages
        try:
            loss = self._compute(inputs, num_items)
        except Exception as error:
            if is_out_of_memory(error):
                raise
            with torch.enable_grad():  # a forward may take gradients itself; if not, it fails as in training
                loss = self._compute(inputs, num_items)
        if isinstance(loss, Tensor) and loss.numel() == 1:
            return loss.detach()
        actual = f"shape {list(loss.shape)}" if isinstance(loss, Tensor) else f"{loss!r}"
        raise TypeError(f"A loss must be a tensor with one element, got {actual}: return its mean.")

    def _compute(self, inputs: Mapping[str, Any], num_items: int) -> Any:
        trainer = self._trainer
        prepared = prepare_inputs(trainer, dict(inputs))
        self._losses.reader.listen(prepared)
        with trainer.compute_loss_context_manager():
            count = torch.tensor(num_items, device=trainer.args.device)
            return trainer.compute_loss(trainer.model_wrapped, prepared, num_items_in_batch=count)

    def _rows(self, num_samples: int) -> Tensor | None:
        rows = self._losses.reader.take_row_losses()
        return rows if rows is not None and len(rows) == num_samples else None

    def _try_normalization(self, batch: StepBatch, number: int) -> loss_forms.Tried | None:
        losses, micro = self._losses, batch.micro_batches[number]
        return loss_forms.try_normalization(
            lambda count, averages: self._loss(micro.inputs, count, averages),
            lambda: self._rows(len(micro.stream_ids)),
            self._run.step.num_items,
            self._run.step.micro_items[number],
            self._trainer.args.world_size,
            loss_forms.EXACT_SHARE if losses.user_computes_loss or losses.differ else loss_forms.LARGEST_OTHER_SHARE,
            is_stock=self._is_stock,
        )

    @property
    def _is_stock(self) -> bool:
        """Whether the loss is that of a model of transformers; if there are several, rows may belong to another."""
        inner = inner_model(self._losses.own_model)
        is_known = isinstance(inner, PreTrainedModel) and library_of(type(inner)) == "transformers"
        return is_known and not (self._losses.user_computes_loss or self._losses.differ)

    def _try_kind(self, batch: StepBatch, number: int) -> loss_forms.KindFound | None:
        micro, loader = batch.micro_batches[number], self._run.present_loader
        inputs, num_samples = batch_mapping(micro.inputs), len(micro.stream_ids)
        if num_samples == 1:
            stream_id = int(micro.stream_ids[0]) if loader.by_stream else None
            try:
                inputs, num_samples = loader.few_samples(batch, stream_id) or (inputs, num_samples)
            except Exception as error:  # a collator may take a single row
                self._failure = error
        rows = rows_to_try(inputs, num_samples, self._losses.labels_per_row)
        self._last_tried = seen = [self._see(one) for one in (rows or [inputs] * 3)]
        if rows is None:
            return None
        tolerance = self._losses.tolerance
        best = loss_forms.find_kind(seen[0], seen[1:], tolerance)
        if best is None or best.kind != "other":
            return best
        # A model that wraps another one, for example, may shift its labels without a way to know.
        shifts = not self._losses.shifts_labels
        shifted = [
            replace(one, rows=None, items=items_per_row(tried, shifts).cpu().numpy())
            for one, tried in zip(seen, rows, strict=True)
            if labels_can_shift(tried)
        ]
        other = loss_forms.find_kind(shifted[0], shifted[1:], tolerance) if shifted else None
        return best._replace(has_other_items=other is not None and other.kind != "other")

    def _see(self, inputs: Mapping[str, Any]) -> loss_forms.Seen:
        loss = math.nan  # which says nothing
        try:
            # Without training's factor world_size.
            loss = float(self._loss(inputs, self._run.step.num_items, averages=False))
        except Exception as error:  # a model may take a single row; the other ranks run as many forwards
            if is_out_of_memory(error):
                raise
            self._failure = error
        items = self._losses.labels_per_row(inputs)
        rows = self._rows(len(items))
        return loss_forms.Seen(loss, None if rows is None else rows.double().cpu().numpy(), items.cpu().numpy())
