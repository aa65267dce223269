"""What losses are divided by, read off the first training forwards between forward and backward."""

import contextlib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.utils import logging

from mixer.loading.collate import batch_mapping
from mixer.loading.loaded_step import MicroBatch, StepBatch
from mixer.losses.normalization import CANDIDATES, LARGEST_OTHER_SHARE, LossNormalization, explaining, predicted
from mixer.losses.stream_losses import StreamLosses
from mixer.models.inputs import inner_model
from mixer.models.row_losses import has_labels, hides_rows, items_per_row, labels_can_shift
from mixer.run.replaced_methods import replaced
from mixer.run.state import Basis
from mixer.trainer.agreement import StepAgreement
from mixer.utils.arrays import BoolArray, Int64Array
from mixer.utils.user_code import library_of

logger = logging.get_logger(__name__)

_NUM = len(CANDIDATES)
# A rank's findings about a loss: the candidates that explain it; those if labels are shifted the other way; the former
# with a part besides the rows; and whether it saw none, saw at most one row, or a division by `num_items_in_batch`, and
# did not fail. The minimum over ranks is what holds on all of them; a rank with nothing to say has ones.
_ABSTENTION = np.ones(3 * _NUM + 4, dtype=np.int64)
_FAILURE = np.append(_ABSTENTION[:-1], 0)
_DIVIDED = np.array([candidate.kind == "items" for candidate in CANDIDATES])
_NO_CONTEXT = contextlib.nullcontext()
# Steps in which kinds that explain all losses so far are compared again.
_MOST_LOOKS = 32
_WAY_OUT = (
    'If that is wrong, set loss_reduction="mean" (over items), "sum", or "items" (divided by num_items_in_batch).'
)


class LossKinds:
    """Finds out how losses are normalised, together with the other ranks.

    While a kind of loss is in question, the ranks agree before the backward of each micro-batch.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        losses: The losses of the streams.
        agreement: Counts the items of a step again.
    """

    def __init__(self, basis: Basis, losses: StreamLosses, agreement: StepAgreement):
        self._trainer, _, self._run, self._ranks = basis
        self._losses, self._agreement = losses, agreement
        self.begin_run()

    def begin_run(self) -> None:
        """Begins a run."""
        self._is_unlike = False  # whether the losses of rows did not explain that of the last step
        self._next_look: dict[int, int] = {}  # by kind of loss: the step from which on this is a reason to look again
        self._num_looks: Counter[int] = Counter()
        self._pending: list[int] = []  # kinds of loss to look at in this step; the same on all ranks
        self._num_left = 0  # micro-batches in which the ranks may still agree
        self._batch: StepBatch | None = None
        self._names: dict[int, str] = {}
        self._ends_all = True  # whether a rank that fails ends the step on all
        self._has_recounted = False  # whether the loss shifts labels unlike its model
        self._warned: set[int] = set()
        self._again: Callable[[], Any] | None = None  # the user's loss of a forward for twice as many items

    # ---- A step ----

    def begin_step(self, batch: StepBatch, ends_all: bool) -> bool:
        """Begins a step, or repeats it; returns whether a loss is in question.

        Args:
            batch: The step.
            ends_all: Whether the step cannot be repeated, so that a rank that fails ends all.
        """
        kinds = np.flatnonzero(batch.plan.counts).tolist() if self._losses.differ else [0]
        self._pending = [kind for kind in kinds if self._is_in_question(kind, batch.plan.step)]
        self._batch = batch if self._pending else None
        if self._pending:
            self._names = {kind: self._losses.name(kind) for kind in self._pending}
        self._num_left, self._ends_all = len(batch.micro_batches), ends_all
        return bool(self._pending)

    def end_step(self, error: Exception | None = None) -> None:
        """Abstains where this rank has not seen a loss, or tells the other ranks that it has failed.

        Args:
            error: Why it has failed; `None` if it has not.
        """
        while self._pending and self._num_left:
            self._agree({}, error)

    def note_unlike(self, is_unlike: bool) -> None:
        """Notes whether the losses of rows did not explain that of the step; the same on all ranks."""
        self._is_unlike = is_unlike
        if is_unlike and self._losses.declared is not None and self.is_strict:
            for kind, known in self._losses.normalizations.items():
                self._losses.normalizations[kind] = replace(known, rows_known=False)

    def ordered(self, order: list[int], micro_batches: Sequence[MicroBatch], num_first: int) -> list[int]:
        """Puts a micro-batch first whose rows have unequal items, if means over items and over rows are in question.

        Args:
            order: Order of the micro-batches.
            micro_batches: The micro-batches.
            num_first: Number of those that have to come first; 0 for none.
        """
        if self._losses.differ or self._is_stock(0):
            return order
        own = order[: num_first or len(order)]
        spread = [float(self._items(micro_batches[number]).double().std(correction=0)) for number in own]
        best = own[int(np.argmax(spread))]
        return [best, *(number for number in order if number != best)]

    # ---- A forward ----

    def is_asked(self, micro: MicroBatch) -> bool:
        """Whether the loss of a micro-batch is in question."""
        return bool(self._pending) and self._losses.kind(micro.first_stream) in self._pending

    def listening(self, micro: MicroBatch) -> contextlib.AbstractContextManager[None]:
        """Gives a forward the loss of its stream, and notes what it shows of that loss if that is in question."""
        function = self._losses.own_function(micro.first_stream)
        if self._pending and self.is_asked(micro):
            used = function or self._trainer.compute_loss_func
            function = None if used is None else self._noting(used)
        return _NO_CONTEXT if function is None else replaced(self._trainer, compute_loss_func=function)

    def _noting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        twice = 2 * self._losses.num_items_in_batch

        def noted(outputs: Any, labels: Any, **kwargs: Any) -> Any:
            self._again = partial(function, outputs, labels, num_items_in_batch=torch.tensor(twice))
            return function(outputs, labels, **kwargs)

        return noted

    def look(self, micro: MicroBatch, loss: Tensor, has_items: bool, is_given: bool) -> None:
        """Decides how losses are normalised, before the backward of a micro-batch.

        Args:
            micro: The micro-batch.
            loss: Its loss.
            has_items: Whether it has items that count.
            is_given: Whether the loss was given `num_items_in_batch`.
        """
        if self._pending:
            kind, is_seen = self._losses.kind(micro.first_stream), has_items and self.is_asked(micro)
            self._agree({kind: self._findings(kind, micro, loss, is_given)} if is_seen else {})
            self._again = None

    # ---- What is in question ----

    def _is_in_question(self, kind: int, step: int) -> bool:
        if self._losses.declared is not None:
            return False
        known = self._losses.normalizations.get(kind)
        if known is None:
            return True
        if not known.rows_known:
            return False
        if self._is_unlike and step >= self._next_look.get(kind, 0):
            return True
        return bool(known.others) and self._num_looks[kind] < _MOST_LOOKS and self._can_tell(known)

    def _can_tell(self, known: LossNormalization) -> bool:
        """Whether kinds that explain all losses so far may differ in this step."""
        kinds = {known.kind, *dict(known.others)}
        if self._ranks.world_size == len(self._run.step.micro_items) == 1:
            kinds.discard("items")
        return len(kinds) > 1 and len(kinds - {"row means"} if self._run.step.counts.is_even else kinds) > 1

    def _is_stock(self, kind: int) -> bool:
        """Whether a loss is that of a model of transformers or of ours, which is a mean over items if it is one."""
        losses, inner = self._losses, inner_model(self._losses.own_model)
        computes = losses.user_computes_loss_of(kind) if losses.differ else losses.user_computes_loss
        libraries = map(library_of, type(inner).__mro__)  # FSDP2 puts a class of torch before the model's
        return not computes and next(name for name in libraries if name != "torch") in ("transformers", "mixer")

    @property
    def is_strict(self) -> bool:
        """Whether a loss has to be that of its rows; if there are several, rows may belong to another."""
        return self._losses.user_computes_loss or self._losses.differ

    def _candidates(self, kind: int) -> BoolArray:
        """Returns the possible candidates, bool `[num_candidates]`."""
        losses, is_stock = self._losses, self._is_stock(kind)
        may_scale = [losses.is_scaled(kind)] if losses.is_computed_by_trainer else [False, True]
        may_scale = [False] if self._trainer.args.world_size == 1 else may_scale
        kinds = {"item mean", "items"} if is_stock else {candidate.kind for candidate in CANDIDATES}
        # A loss of half the mean looks like one divided by the items of two micro-batches.
        if losses.is_computed_by_trainer and not losses.may_be_divided(kind):
            kinds -= {"items"}
        return np.array([candidate.is_scaled in may_scale and candidate.kind in kinds for candidate in CANDIDATES])

    # ---- What a rank finds ----

    def _items(self, micro: MicroBatch) -> Tensor:
        return self._losses.labels_per_row(batch_mapping(micro.inputs))

    def _findings(self, kind: int, micro: MicroBatch, loss: Tensor, is_given: bool) -> Int64Array:
        """Returns what this rank finds about a loss; see `_ABSTENTION`."""
        losses, inputs, value = self._losses, batch_mapping(micro.inputs), float(loss.detach())
        if not np.isfinite(value) or value == 0:
            return _ABSTENTION
        items, share = self._items(micro), 0.0 if self.is_strict else LARGEST_OTHER_SHARE
        explain = partial(self._explaining, kind, value)
        rows = losses.reader.row_losses
        own, with_rest, other = explain(rows, items), explain(rows, items, share), np.zeros(_NUM, dtype=np.bool_)
        if self._again is not None and not self._divides(kind, value, is_given):
            own, with_rest = own & ~_DIVIDED, with_rest & ~_DIVIDED
        if not own.any() and labels_can_shift(inputs):
            # A model that wraps another one, for example, may shift its labels without a way to know.
            other = explain(losses.reader.other_row_losses(), items_per_row(inputs, not losses.shifts_labels))
        divides = not own.any() and self._divides(kind, value, has_labels(inputs) and is_given)
        findings = [own, other, with_rest, np.array([False, len(items) <= 1, divides, True])]
        return np.concatenate(findings).astype(np.int64)

    def _explaining(
        self, kind: int, value: float, rows: Tensor | None, items: Tensor, other_share: float = 0.0
    ) -> BoolArray:
        if rows is None or len(rows) != len(items):
            return np.zeros(_NUM, dtype=np.bool_)
        counts = items.cpu().numpy()
        predictions = predicted(
            rows.double().cpu().numpy(), counts, self._losses.num_items_in_batch, self._trainer.args.world_size
        )
        return explaining(value, predictions, self._candidates(kind), self._losses.tolerance, other_share)

    def _divides(self, kind: int, value: float, is_given: bool) -> bool:
        """Whether a loss that its rows do not explain is divided by `num_items_in_batch`, as far as it can be told."""
        losses, trainer = self._losses, self._trainer
        if self._again is not None:
            with torch.no_grad():
                half = float(self._again()) * (trainer.args.world_size if losses.is_scaled(kind) else 1)
            return abs(value - 2 * half) < abs(value - half)
        inner = inner_model(losses.own_model)
        if self._is_stock(kind) and isinstance(inner, PreTrainedModel) and not hides_rows(trainer.args):
            return losses.reader.was_given_count
        return losses.is_taken_as_divided(kind) and is_given

    # ---- What the ranks decide ----

    def _agree(self, findings: Mapping[int, Int64Array], error: Exception | None = None) -> None:
        """Decides by what ranks find, by kind of loss; all take part. One that has failed ends all, or abstains."""
        self._num_left -= 1
        own = np.stack([findings.get(kind, _ABSTENTION if error is None else _FAILURE) for kind in self._pending])
        least = self._ranks.all_reduce_min(own.reshape(-1)).reshape(own.shape)
        if self._ends_all and not least[:, -1].all():
            self._pending.clear()
            self._ranks.raise_on_all(error)
        has_none = least[:, 3 * _NUM].astype(np.bool_)
        seen = [kind for kind, is_none in zip(self._pending, has_none, strict=True) if not is_none]
        self._pending = [kind for kind in self._pending if kind not in seen]
        for kind, of_ranks in zip(seen, least[~has_none], strict=True):
            self._decide(kind, of_ranks)

    def _decide(self, kind: int, least: Int64Array) -> None:
        """Decides on a kind of loss by what holds on all ranks that have seen it."""
        own, other, with_rest = least[: 3 * _NUM].reshape(3, _NUM).astype(np.bool_)
        is_one_row, divides = (bool(number) for number in least[3 * _NUM + 1 : -1])
        losses, before = self._losses, self._losses.normalizations.get(kind)
        self._num_looks[kind] += 1
        self._next_look[kind] = 2 * self._run.step.present_plan.step
        counted_rows, recounts = before is not None and before.counts_rows, False
        if before is not None and (still := own & _places(before)).any():
            own = still
        elif not own.any() and other.any() and not (self._has_recounted or losses.differ):
            self._has_recounted = recounts = True
            losses.reader.row_losses = losses.reader.other_row_losses()
            losses.count_other_labels()
            own = other
        own = own if own.any() else with_rest
        found = self._chosen(kind, own, is_one_row) if own.any() else self._as_trainer(kind, is_one_row, divides)
        if before is not None and counted_rows and own[CANDIDATES.index(replace(before, others=()))]:
            found = before
        losses.normalizations[kind] = found
        if (recounts or found.counts_rows != counted_rows) and self._batch is not None:
            self._agreement.recount(self._batch)

    def _chosen(self, kind: int, explaining: BoolArray, is_one_row: bool) -> LossNormalization:
        """Chooses among candidates that explain all losses so far."""
        left = [candidate for candidate, explains in zip(CANDIDATES, explaining, strict=True) if explains]
        chosen, kinds = left[0], {candidate.kind for candidate in left}
        if is_one_row and not self._is_stock(kind) and not self._run.step.counts.is_even:
            like = (
                "row means" if "row means" in kinds else "sum" if self._losses.is_taken_as_divided(kind) else "row sums"
            )
            chosen = next((candidate for candidate in left if candidate.kind == like), chosen)
            if len(kinds) > 1:
                text = (
                    "%s is computed of single rows, which do not show how it is divided: it counts as {} over rows. %s"
                )
                self._warn(kind, text.format("a mean" if chosen.counts_rows else "a sum"))
        others = [candidate for candidate in left if candidate is not chosen]
        return replace(chosen, others=tuple((candidate.kind, candidate.is_scaled) for candidate in others))

    def _as_trainer(self, kind: int, is_one_row: bool, divides: bool) -> LossNormalization:
        """Returns the normalisation by which a loss is trained as by the Trainer, and warns."""
        if divides:
            weighted, found = "as if it was divided by num_items_in_batch", LossNormalization("items", True, False)
        else:
            weighted = "with the same weight for every row" if is_one_row else "weighted by their labels"
            found = LossNormalization("row sums" if is_one_row else "item mean", self._losses.is_scaled(kind), False)
        self._warn(
            kind, f"How %s is divided cannot be seen in the losses of its rows: micro-batches add up {weighted}. %s"
        )
        return found

    def _warn(self, kind: int, text: str) -> None:
        if kind not in self._warned and self._trainer.is_world_process_zero():
            logger.warning(text, self._names[kind], _WAY_OUT)
        self._warned.add(kind)


def _places(known: LossNormalization) -> BoolArray:
    """Returns the candidates that have explained all losses so far, bool `[num_candidates]`."""
    left = {(known.kind, known.is_scaled), *known.others}
    return np.array([(candidate.kind, candidate.is_scaled) in left for candidate in CANDIDATES])
