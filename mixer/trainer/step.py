"""The training step: all its micro-batches, on every rank, as if one process had the whole batch."""

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from transformers.utils import logging

from mixer.distributed.collectives import OtherRankError, RankSync
from mixer.ledger.ledger import Ledger
from mixer.loading.batching import STREAMS_IN_TURN
from mixer.loading.build import MixtureOptions
from mixer.loading.collate import StreamSpecifics, batch_mapping
from mixer.loading.iterable.feed import Feed
from mixer.loading.result import StepResult
from mixer.loading.step import MicroBatch, StepBatch, StepCounts, confirm
from mixer.mixture.bad_samples import Skipping
from mixer.mixture.controller import Mixing
from mixer.mixture.learning_rate import LearningRate
from mixer.models.loss_normalization import LossNormalization, counts_other_items, decide, needs_kind
from mixer.models.row_losses import items_per_row, tokens_per_row
from mixer.policies.contract import Policy
from mixer.policies.gradient_statistics import GradientStatistics
from mixer.trainer.checkpointing.choose import write_error
from mixer.trainer.hooks import ForwardResult, StepHook
from mixer.trainer.losses import LossesMixin, factor_of
from mixer.utils.arrays import Int64Array
from mixer.utils.files import WriteError

logger = logging.get_logger(__name__)

NonFinite = Literal["warn", "skip", "raise"]

# Maximum number of skipped samples that each rank logs one by one.
_MOST_TOLD = 20
_HALF = (torch.float16, torch.bfloat16)


class NonFiniteLossError(RuntimeError):
    """A stream's loss is not finite, and `nonfinite='raise'`."""


class StepMixin(LossesMixin):
    """The steps of a Trainer whose batches are whole steps; `MixingMixin` sets it up."""

    ledger: Ledger
    _policy: Policy
    _mixture: MixtureOptions
    _max_tokens: int | None = None
    _allow_inexact: bool = False
    _rank_sync: RankSync
    _nonfinite: NonFinite
    _skipping: Skipping = Skipping()
    _step_told_broken: int = -1  # the last step whose broken samples were logged
    _num_told_broken: int = 0
    _recovers: bool = False  # whether a step may be repeated in smaller micro-batches
    _has_begun: bool = False  # whether the run has asked for a step
    _keeps_samples: bool = False  # whether a method needs the samples of a step
    _load_counts: dict[str, int]
    _items_in_batch: Tensor | int | None = None  # number of items as the Trainer counts them
    _mixing: Mixing | None = None
    _feed: Feed | None = None
    _specifics: Mapping[int, StreamSpecifics] = {}  # collators and heads of single streams
    _finished: StepResult | None = None
    _policy_error: Exception | None = None
    _method_error: Exception | None = None  # of a method after a step, on one of several ranks
    _learning_rate: LearningRate | None = None
    _gradient_norm: Tensor | float | None = None  # of the last step, before clipping
    _hooks: tuple[StepHook, ...] = ()
    _wants_one_stream_each: bool = False  # whether every micro-batch must contain one stream
    _has_recounted_labels: bool = False  # whether the loss shifts labels unlike its model
    _last_loss: Tensor  # of the last micro-batch with items, before weights
    _num_first: int = 0  # remaining micro-batches of the present step that go first
    _last_rows: Tensor | None = None  # `[num_rows]`: sums of the last micro-batch's loss terms

    @property
    def mixing(self) -> Mixing:
        """The controller of the mixture: weights, coverage, live control.

        Raises:
            ValueError: If the trainer has no training data.
        """
        if self._mixing is None:
            raise ValueError("This trainer has no train_dataset and therefore no mixture.")
        return self._mixing

    def get_batch_samples(
        self, epoch_iterator: Iterator[Any], num_batches: int, device: torch.device
    ) -> tuple[list[Any], Tensor | int | None]:
        """Loads the next step and checks that all ranks agree on it; see `Trainer.get_batch_samples`."""
        self._load_started, self._has_begun = time.perf_counter(), True
        if (batch := self._load_and_confirm(lambda: next(epoch_iterator, None))) is None:
            return [], None
        self._load_counts = dict(zip(("hits", "misses"), self._present_loader.hits_and_misses, strict=True))
        if unknown := self._unknown_kinds(batch.plan):
            batch = self._learn_normalizations(batch, unknown)
        batch = self._before_training(batch)
        self._train_started = time.perf_counter()
        return [batch], torch.tensor(self._num_items_told, device=device)

    def _begin_run(self) -> None:
        """Called when the loop begins, before its loader is made."""

    def _measured(self) -> tuple[GradientStatistics | None, float]:
        """Returns what was measured of the streams' gradients in the last step, and the seconds that it took."""
        raise NotImplementedError

    def _agree_on_control(self) -> None:
        """Applies a request of one rank on all ranks."""

    def _prepare_run(self) -> None:
        """Called before the first step: the model is wrapped, the optimizer and the learning-rate schedule exist."""
        for hook in self._hooks:
            hook.prepare(self.model_wrapped)

    def _release_run(self) -> None:
        """Releases, after `train`, what only the run needs."""
        for hook in self._hooks:
            hook.release()
        self._detach_tracker()
        if self._loader is not None:
            self._loader.stop()

    def _before_training(self, batch: StepBatch) -> StepBatch:
        """Returns the step to train after all ranks have confirmed one: by default the same."""
        return batch

    def _load_and_confirm(self, load: Callable[[], StepBatch | None]) -> StepBatch | None:
        """Loads a step, or catches an error, and reports it to the other ranks before anything else happens."""
        batch, counts = None, None
        error = self._explained(self._method_error or self._policy_error or self.ledger.error)
        try:
            if self._can_load(error):
                batch = load()
                counts = None if batch is None else self._contents(batch)
        except OtherRankError:
            batch = None
        except Exception as caught:  # sent to all ranks before it is raised
            error = caught
        plan = None if batch is None else batch.plan
        self._step_counts = counts = confirm(self._rank_sync, len(self.streams), plan, counts, error)
        if batch is not None:
            self._plan = batch.plan
            self.mixing.check_tokens(batch.plan, counts.tokens, counts.skipped)
            self._log_broken_samples(batch, counts.skipped)
        return batch

    def _log_broken_samples(self, batch: StepBatch, skipped: Int64Array | None) -> None:
        """Logs the samples that a step skips, and ends the run on all ranks if there are too many."""
        messages = [sample.message for _, sample in batch.broken]
        if batch.plan.step != self._step_told_broken:  # otherwise it was reloaded
            self._step_told_broken = batch.plan.step
            for message in messages[: max(_MOST_TOLD - self._num_told_broken, 0)]:
                logger.warning("Step %d continues without a sample. %s", batch.plan.step, message)
            self._num_told_broken += len(messages)
            if self._num_told_broken >= _MOST_TOLD > self._num_told_broken - len(messages):
                logger.warning("Further skipped samples are counted in the ledger (column skipped), but not logged.")
        if skipped is not None:
            self._skipping.check(self.mixing.names, self.mixing.skipped + skipped, self.mixing.seen, messages)

    def _explained(self, error: Exception | None) -> Exception | None:
        """Adds what is safe to the error of a file that could not be written between steps."""
        if not isinstance(error, WriteError) or error.says_what_is_safe:
            return error
        return write_error("A file of the run", error, Path(str(self.args.output_dir)))

    def _can_load(self, error: Exception | None) -> bool:
        """Whether to load; ranks that communicate while loading do so only if all of them can."""
        if self._loader is None or not self._loader.is_talkative:
            return error is None
        return bool(self._rank_sync.least(np.array([error is None], dtype=np.int64))[0])

    def _contents(self, batch: StepBatch) -> StepCounts:
        num_streams = len(self.streams)
        items, tokens = np.zeros((2, num_streams), dtype=np.int64)
        self._micro_items = []
        num_first = num_rows = squared_items = 0
        for micro in batch.micro_batches:
            with self._naming_streams(micro):
                per_row = self._items_per_row(micro)
            self._micro_items.append(0 if micro.is_padding else int(per_row.sum()))
            if not micro.is_padding:
                items += _by_stream(per_row, micro, num_streams)
                tokens += _by_stream(tokens_per_row(micro.inputs), micro, num_streams)
                num_first += self._num_first_labels(micro, per_row)
                num_rows += len(per_row)
                squared_items += int(per_row.square().sum())
        skipped = np.bincount([stream_id for stream_id, _ in batch.broken], minlength=num_streams)
        return StepCounts(
            items, tokens, num_first=num_first, skipped=skipped, num_rows=num_rows, squared_items=squared_items
        )

    def _num_first_labels(self, micro: MicroBatch, per_row: Tensor) -> int:
        """Counts the labels that the Trainer counts although they are no loss terms."""
        if self._losses_differ or self._normalization_of(0).counts_rows:
            return 0
        counted = items_per_row(batch_mapping(micro.inputs), self._loss_shifts_labels)
        return int(counted.sum()) - int(per_row.sum())

    def _learn_normalizations(self, batch: StepBatch, kinds: Sequence[int]) -> StepBatch:
        """Determines how losses are normalised; reloads the step by stream if rows cannot be separated."""
        if self._row_losses is None:
            self._row_losses = self._new_tracker(self._unwrapped_model, not self.args.torch_compile, self._keeps_output)
            self._row_losses.attach()
        items_were = [self._normalization_of(kind).counts_rows for kind in kinds]
        for kind in kinds:
            batch, normalization = self._learn_normalization(batch, kind)
            if normalization is not None:
                self._normalizations[kind] = normalization
        loader, known = self._present_loader, self._normalizations.values()
        loader.keeps_samples = self._recovers or self._keeps_samples or any(one.is_tentative for one in known)
        if all(one.rows_known for one in known) or loader.by_stream or loader.in_turns:
            if items_were == [self._normalization_of(kind).counts_rows for kind in kinds]:
                return batch
            return self._load_and_confirm(lambda: batch) or batch  # its items have changed
        self._part_streams()
        return self._load_and_confirm(lambda: loader.load(batch.plan)) or batch

    def _part_streams(self) -> None:
        """Separates streams into micro-batches of their own: all streams, or some in turns."""
        loader, num_streams = self._present_loader, len(self.streams)
        loader.in_turns = loader.takes_turns and num_streams > STREAMS_IN_TURN
        loader.by_stream = not loader.in_turns
        if num_streams > 1 and self.is_world_process_zero():
            logger.warning(
                "The loss of this model cannot be separated by row, so %s.",
                f"a step measures the losses of {STREAMS_IN_TURN} of the {num_streams} streams, in turns: these get "
                f"micro-batches of their own, up to {STREAMS_IN_TURN} more forwards per step, and the policy sees no "
                "loss of the others"
                if loader.in_turns
                else "every micro-batch contains one stream only",
            )

    def _learn_normalization(self, batch: StepBatch, kind: int) -> tuple[StepBatch, LossNormalization | None]:
        """Determines how the losses of one kind are normalised, together with the other ranks."""
        batch, own = self._vote(batch, kind, self._try_normalization)
        votes, of_kind = self._rank_sync.add_up(own.to(self.args.device)).cpu(), None
        if needs_kind(votes):
            batch, own = self._vote(batch, kind, self._try_kind)
            of_kind = self._rank_sync.add_up(own.to(self.args.device)).cpu()
            if counts_other_items(of_kind) and not (self._has_recounted_labels or self._losses_differ):
                # Count the first label of each row from now on, or stop counting it.
                self._has_recounted_labels = True
                vars(self)["_shifts_labels"] = not self._shifts_labels
                self._tracker.shift_labels(self._shifts_labels)
                return self._learn_normalization(self._load_and_confirm(lambda: batch) or batch, kind)
        normalization = decide(votes, self.args.world_size, of_kind)
        if normalization is not None and normalization.kind == "other" and self.is_world_process_zero():
            self._warn_of_other_loss(kind, normalization)
        return batch, normalization

    def _warn_of_other_loss(self, kind: int, normalization: LossNormalization) -> None:
        """Warns of a loss whose gradient on the whole batch cannot be computed from micro-batches."""
        logger.warning(
            "%s is neither a sum nor a mean over tokens or rows: for some rows it is %.4g, for their halves %.4g and "
            "%.4g. The gradient of a step is therefore the mean of its micro-batches' gradients, weighted by their "
            "%s; the Trainer's with gradient accumulation is the same mean with equal weights. For the gradient of "
            "the whole batch use one micro-batch: per_device_train_batch_size as large as the batch, on one rank.",
            self._name_of_loss(kind),
            *(seen.loss for seen in self._last_tried),
            "share of num_items_in_batch" if normalization.counts_items else "labels",
        )

    def training_step(self, model: nn.Module, inputs: Any, num_items_in_batch: Tensor | int | None = None) -> Tensor:
        """Runs all micro-batches of a step, with gradients synchronised once; see `Trainer.training_step`."""
        if not isinstance(inputs, StepBatch):
            if self.is_in_train:
                raise self._refused_step(f", but a {type(inputs).__name__}")
            return super().training_step(model, inputs, num_items_in_batch)
        self._items_in_batch = num_items_in_batch
        try:
            loss, sums = self._train_step(model, inputs)
            for hook in self._hooks:
                hook.end_backward(model)
        except BaseException:
            for hook in self._hooks:
                hook.cancel()
            raise
        gradients, probe_seconds = self._measured()
        self._finished = StepResult(
            inputs.plan,
            self._step_counts,
            self._rank_sync.add_up(sums),
            learning_rate=float("nan") if self._learning_rate is None else self._learning_rate.value,
            learning_rate_factor=1.0 if self._learning_rate is None else self._learning_rate.factor,
            gradients=gradients,
            item_factors=self._item_factors,
            measured=self._present_loader.measured(inputs.plan),
        )
        if self._nonfinite != "warn":
            self._handle_nonfinite(model, self._finished)
        self.ledger.record_timings(
            step=inputs.plan.step,
            total=inputs.plan.total,
            micro_batches=len(self._micro_items),
            load_seconds=self._train_started - self._load_started,
            train_seconds=time.perf_counter() - self._train_started,
            probe_seconds=probe_seconds,
            **self._load_counts,
        )
        return loss

    def _refused_step(self, actual: str = "") -> TypeError:
        return TypeError(
            f"{type(self).__name__}.training_step did not pass its batch on to super().training_step{actual}. "
            "The batch is a whole step of several micro-batches, which can be read like a dict but not changed. "
            "Pass it on as it is. To change inputs or add loss terms, use the data_collator or compute_loss, which see "
            "each micro-batch."
        )

    def _train_step(self, model: nn.Module, batch: StepBatch, is_synchronised: bool = True) -> tuple[Tensor, Tensor]:
        """Runs the micro-batches; returns the loss and, per stream, the sums for `StepResult.loss_sums`."""
        sums = torch.zeros(len(self.streams) + 1, dtype=self._sum_dtype, device=self.args.device)
        loss = torch.zeros((), device=self.args.device)
        gradient_state = self.accelerator.gradient_state
        always = gradient_state.plugin_kwargs.get("sync_each_batch", False)
        self._begin_step(model, batch)
        order = self._order(batch)
        for number in order:
            micro, last = batch.micro_batches[number], order[-1]
            gradient_state._set_sync_gradients(number == last)  # noqa: SLF001 accelerate
            synchronises = is_synchronised and (always or number == last)
            no_sync = contextlib.nullcontext() if synchronises else self.accelerator.no_sync(model=model)
            with self._hooked(model, micro, synchronises), no_sync:
                loss = loss + self._train_micro_batch(model, micro, self._micro_items[number], sums)
        return loss, sums

    @contextlib.contextmanager
    def _hooked(self, model: nn.Module, micro: MicroBatch, is_synchronised: bool) -> Iterator[None]:
        """Calls the hooks before and after a micro-batch is trained."""
        if not self._hooks:
            yield
            return
        trained = ForwardResult(self._plan, micro, None, self._items_per_row(micro))
        for hook in self._hooks:
            hook.begin_micro_batch(trained, is_synchronised)
        with self._terms_added(trained):
            yield
        items, self._tracker.item_losses = self._tracker.item_losses, None
        loss_sum = self._loss_sum_to_check(micro) if items is not None and trained.num_items else None
        trained = replace(trained, row_losses=self._last_rows, item_losses=items, loss_sum=loss_sum)
        is_first = self._goes_first(micro)
        self._num_first -= is_first
        for hook in self._hooks:
            hook.end_micro_batch(model, trained, is_first and self._num_first == 0)

    def _terms_added(self, trained: ForwardResult) -> contextlib.AbstractContextManager[None]:
        """Adds the methods' terms to the loss of a micro-batch."""
        raise NotImplementedError

    def _goes_first(self, micro: MicroBatch) -> bool:
        """Whether a micro-batch runs before the others."""
        raise NotImplementedError

    def _loss_sum_to_check(self, micro: MicroBatch) -> Tensor | None:
        """Returns the sum of a micro-batch's item losses by its loss, unless rows are known to be its terms."""
        first = int(micro.stream_ids[0])
        if self._normalization_of(first).rows_known or not self._factor(first):  # weight 0 leaves no loss
            return None
        counting = factor_of(self._item_factors, first)
        loss_sum: Tensor = self._last_loss * (self._num_divided_by / (counting * self.args.world_size))
        return loss_sum

    @property
    def _sum_dtype(self) -> torch.dtype:
        return torch.float32 if self.args.device.type == "mps" else torch.float64

    def _begin_step(self, model: nn.Module, batch: StepBatch) -> None:
        """Called before the micro-batches run, again if the step is repeated."""
        if not self._hooks:
            return
        self._num_first = sum(map(self._goes_first, batch.micro_batches))
        for hook in self._hooks:
            hook.begin_step(model, batch)

    def _order(self, batch: StepBatch) -> list[int]:
        """Returns the order of the micro-batches; the same on every rank."""
        return list(range(len(batch.micro_batches)))

    def _train_micro_batch(self, model: nn.Module, micro: MicroBatch, own_items: int, sums: Tensor) -> Tensor:
        """Runs the forward and backward of a micro-batch and adds the streams' losses to `sums`."""
        first, tracker = int(micro.stream_ids[0]), self._tracker
        normalization, factor = self._normalization_of(first), self._factor(first)
        total, world_size, counting = self._num_divided_by, self.args.world_size, factor_of(self._item_factors, first)
        divisor = normalization.divisor(total, own_items, world_size)
        # The Trainer's own division does the scaling, for any compute_loss of a subclass: by infinity for weight 0.
        self.loss_is_scaled_for_ga = False
        divide_by: Any = divisor / factor if factor and own_items else float("inf")
        self.current_gradient_accumulation_steps = divide_by
        tracker.listen(micro.inputs)
        num_items = self._items_in_batch if normalization.counts_items else None
        with self._with_loss_of(first), self._naming_streams(micro):
            loss = super().training_step(model, micro.inputs, num_items)
        self._last_rows = self._row_terms(micro)
        if not own_items:
            return torch.zeros_like(loss)
        unweighted = loss * (counting / factor) if factor else torch.zeros_like(loss)
        unweighted = self._last_loss = self._add_stream_losses(
            sums, micro, unweighted, counting * world_size / total, factor
        )
        sums[-1] += unweighted * (total / self._num_items) / world_size
        return unweighted

    def _add_stream_losses(
        self, sums: Tensor, micro: MicroBatch, unweighted: Tensor, per_item: float, factor: float
    ) -> Tensor:
        """Adds the streams' losses to `sums`; returns the loss of the micro-batch, without rounding if rows show it.

        Args:
            sums: `[num_streams + 1]`: the sums of `_train_step`.
            micro: The micro-batch.
            unweighted: Its loss, without the factor.
            per_item: Weight of an item in that loss.
            factor: Factor of the loss in the backward.
        """
        first, rows = int(micro.stream_ids[0]), self._last_rows
        ids = torch.from_numpy(micro.stream_ids).to(sums.device)
        # The loss of a single stream is known, unless it was divided by infinity.
        is_single = factor > 0 and bool((micro.stream_ids == first).all())
        are_rows = self._normalization_of(first).rows_known and rows is not None and len(rows) == len(ids)
        if are_rows and rows is not None and not (is_single and self._computes_own_loss(first)):
            sums[:-1].index_add_(0, ids, rows.to(sums.dtype))
            if factor and unweighted.dtype not in _HALF:
                return unweighted
            of_rows = rows.sum() * per_item
            return _unrounded(unweighted, of_rows) if factor else of_rows
        # A loss of several streams whose rows cannot be separated belongs to none of them. If its kind is still
        # unknown, it is 0 or not finite.
        is_unknown = factor > 0 and (self._kind(first) not in self._normalizations or self._present_loader.in_turns)
        sums[ids] += unweighted * (1 / per_item if is_single else 0.0 if is_unknown else float("nan"))
        return unweighted

    def compute_loss_context_manager(self) -> contextlib.ExitStack:
        """Averages an auxiliary loss over a step's micro-batches; see `Trainer.compute_loss_context_manager`."""
        stack = super().compute_loss_context_manager()
        if self._mixing is not None and getattr(self, "aux_loss_enabled", False):
            # TRL's SFTTrainer divides it by this number, which for the Trainer is the divisor of the whole loss.
            divide_by = getattr(self, "current_gradient_accumulation_steps", 1)
            self.current_gradient_accumulation_steps = max(len(self._micro_items), 1)
            stack.callback(setattr, self, "current_gradient_accumulation_steps", divide_by)
        return stack

    def _handle_nonfinite(self, model: nn.Module, batch: StepResult) -> None:
        names = [self.mixing.names[stream_id] for stream_id in batch.bad_streams()]
        if names and self._nonfinite == "raise":
            raise NonFiniteLossError(f"Step {batch.plan.step}: the loss of {names} is not finite.")
        if names and self.accelerator.scaler is None:  # a gradient scaler skips such a step itself
            logger.warning("Step %d is skipped: the loss of %s is not finite.", batch.plan.step, names)
            model.zero_grad(set_to_none=True)


def _unrounded(loss: Tensor, of_rows: Tensor) -> Tensor:
    """Returns a loss in half precision (FSDP rounds the model's output) from its rows, if only rounding differs."""
    is_rounded = (loss - of_rows).abs() <= 4 * torch.finfo(loss.dtype).eps * of_rows.abs()
    return torch.where(is_rounded, of_rows, loss.to(of_rows.dtype))


def _by_stream(per_row: Tensor, micro: MicroBatch, num_streams: int) -> Int64Array:
    ids, numbers = micro.stream_ids, per_row.cpu().numpy()
    if len(numbers) != len(ids):  # packed rows of one stream, or the run will separate streams
        ids, numbers = ids[:1], numbers.sum(keepdims=True)
    return np.bincount(ids, weights=numbers, minlength=num_streams).astype(np.int64)
