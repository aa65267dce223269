"""Turns finished steps into rows of the ledger and log entries."""

import copy
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from transformers.utils import logging

from mixer.gradients.records import gradient_entries
from mixer.ledger.decisions import Level, is_same, levels_of, rows_of
from mixer.ledger.intervals import StreamMeans
from mixer.ledger.ledger import Ledger
from mixer.ledger.orders import OrderRecorder
from mixer.loading.loaded_step import StepResult, read_together
from mixer.measurements import GradientStatistics, Results
from mixer.mixture.controller import Mixing
from mixer.mixture.weights import mean_tokens
from mixer.utils.arrays import FloatArray
from mixer.utils.saved_state import HasState
from mixer.utils.validation import finite_number

logger = logging.get_logger(__name__)
# Number of steps whose losses may wait on a GPU, if nothing needs them earlier.
_MAX_WAITING = 64


def _shares_in_unit(mixing: Mixing, result: StepResult) -> FloatArray:
    """Returns the shares asked for in a step, `[num_streams]`, in the policy's unit; a plan has those of samples."""
    plan, unit = result.plan, mixing.policy.unit
    before = mixing.seen - plan.counts, mixing.amounts - result.contents.amounts(unit)
    return plan.shares(None if unit == "samples" else mean_tokens(*before))


_Columns = dict[str, NDArray[Any]]
# A step with losses and norm that may still be on a GPU: its result, the run's state and place after it, and the norm.
_Waiting = tuple[StepResult, FloatArray, _Columns, dict[str, float], Tensor | float | None]


class Recorder(HasState):
    """Writes the ledger and collects the streams' figures for the next log entry.

    Args:
        mixing: The controller.
        ledger: The ledger.
        reads_at_once: Whether losses are read from the device after every step; else in time for ledger and log.
    """

    remembered = (
        *("_weights", "_counts", "_amounts", "_losses", "_num_steps", "_total", "_other"),
        *("_batch_size", "_factor", "_gradients"),
    )

    def __init__(self, mixing: Mixing, ledger: Ledger, reads_at_once: bool):
        self._mixing = mixing
        self._ledger = ledger
        self.reads_at_once = reads_at_once
        self._batch_size, self._factor = 0, 1.0
        self._waiting: list[_Waiting] = []
        self._decision = copy.deepcopy(mixing.decision)
        self._decided: int | None = None  # step of a decision that waits for the end of its interval
        self._orders = OrderRecorder(mixing, ledger)
        self._reset()

    def _reset(self) -> None:
        num_streams = len(self._mixing.names)
        self._weights = np.zeros(num_streams)
        self._counts = np.zeros(num_streams, dtype=np.int64)
        self._amounts = np.zeros(num_streams, dtype=np.int64)
        self._losses = StreamMeans(num_streams)
        self._num_steps, self._total, self._other = 0, 0.0, 0.0
        self._gradients: dict[str, float] = {}

    def record_start(self) -> None:
        """Writes the decision that a new run begins with, but for a policy that never changes it."""
        if not self._mixing.policy.is_static:
            self._record_decision(0)

    def record_new_policy(self, step: int) -> None:
        """Writes the decision with which a fork begins after a step, in place of those of the run that it left."""
        self._ledger.drop_decisions(step)
        self._record_decision(step)

    def record(
        self,
        result: StepResult,
        measured: Results | None = None,
        gradient_norm: Tensor | float | None = None,
        left_out: Sequence[tuple[int, int]] = (),
    ) -> None:
        """Records a step, after the controller has observed it.

        Args:
            result: The step.
            measured: What was measured, by the class of its request; `None` for nothing.
            gradient_norm: Norm of its gradient before clipping, on any device; `None` if it was not measured.
            left_out: Stream id and position of each skipped sample.
        """
        plan = result.plan
        self._batch_size, self._factor = plan.batch_size, result.learning_rate_factor
        shares, columns = _shares_in_unit(self._mixing, result), self._columns(result)
        self._waiting.append((result, shares, columns, self._place(result), gradient_norm))
        self._orders.record(plan, left_out)
        self._note_decision(plan.step)
        for statistics in (found for found in (measured or {}).values() if isinstance(found, GradientStatistics)):
            self._ledger.record_gradients(plan.step, self._mixing.names, statistics)
            self._gradients = gradient_entries(self._mixing.names, statistics)
        if self.reads_at_once or len(self._waiting) >= _MAX_WAITING:
            self._write_steps()

    def _columns(self, result: StepResult) -> _Columns:
        """Gives the columns of a step's rows, one per stream, but for the losses."""
        mixing, planner, epochs, plan = self._mixing, self._mixing.planner, self._mixing.stream_epochs, result.plan
        ones = np.ones(len(plan.counts))
        return {
            "weight": plan.weights,
            "policy_weight": plan.policy_weights,
            "loss_weight": ones if plan.loss_weights is None else plan.loss_weights,
            "count": plan.counts,
            "items": result.contents.items,
            "tokens": result.contents.tokens,
            "labels": result.contents.amounts("labels"),
            "staleness": np.full(len(plan.counts), plan.staleness),
            "seen": mixing.seen.copy(),
            "unique": mixing.unique,
            "coverage": np.minimum(1.0, epochs),
            "epoch": epochs,
            "undelivered": planner.undelivered,
            "skipped": mixing.skipped.copy(),
            "owed": planner.deficit,
            "active": planner.active(mixing.clock.progress),
        }

    def _place(self, result: StepResult) -> dict[str, float]:
        """Gives the row of the run's position after a step, but for the loss."""
        clock, plan = self._mixing.clock, result.plan
        return {
            "step": plan.step,
            "samples": clock.num_samples,
            "tokens": clock.num_tokens,
            "labels": clock.num_labels,
            "epoch": clock.epoch,
            "progress": clock.progress,
            "batch_size": plan.batch_size,
            "total": plan.total,
            "learning_rate": result.learning_rate,
            "learning_rate_factor": result.learning_rate_factor,
        }

    def flush(self) -> None:
        """Writes all that waits: steps for their losses, a decision for the end of its interval."""
        self._write_decision()
        self._write_steps()

    def _write_steps(self) -> None:
        """Writes all steps that wait for their losses, which are read from the device together."""
        norms = read_together([step[0] for step in self._waiting], [step[-1] for step in self._waiting])
        for (result, shares, columns, place, _), norm in zip(self._waiting, norms, strict=True):
            self._write_step(result, shares, columns, place | {"gradient_norm": math.nan if norm is None else norm})
        self._waiting.clear()

    def log_entries(self) -> dict[str, float]:
        """Gives the streams' figures since the last call.

        Returns:
            `train_coverage`, `batch_size` of the last step (and `learning_rate_factor`, if the batch size moves the
            learning rate), and for each stream `coverage/NAME` (`seen/NAME` where its size is not known),
            `weight/NAME` (share asked for, in the policy's unit), `count/NAME` (samples since the last entry),
            `tokens/NAME` or `labels/NAME` (likewise, for a mixture by tokens or labels) and
            `loss/NAME` (mean per item since then, if it had items); `loss/other` where the loss holds a part that is no
            stream's; what `gradient_entries` says of the newest measurement since then. Of one data set that is counted
            in steps there is this alone: its log is the Trainer's.
        """
        self._write_steps()
        is_plain = len(self._mixing.names) == 1 and self._mixing.clock.is_step_based
        entries = {**({} if is_plain else self._figures()), **self._gradients}
        self._reset()
        return entries

    def _figures(self) -> dict[str, float]:
        entries = {"train_coverage": self._mixing.clock.epoch_coverage}
        if self._batch_size:
            entries["batch_size"] = self._batch_size
        if self._factor != 1.0:
            entries["learning_rate_factor"] = self._factor
        for stream_id, (name, coverage) in enumerate(self._mixing.coverage.items()):
            if np.isnan(coverage):
                entries[f"seen/{name}"] = int(self._mixing.seen[stream_id])
            else:
                entries[f"coverage/{name}"] = coverage
            entries[f"weight/{name}"] = float(self._weights[stream_id])
            entries[f"count/{name}"] = int(self._counts[stream_id])
            if (unit := self._mixing.policy.unit) != "samples":
                entries[f"{unit}/{name}"] = int(self._amounts[stream_id])
            if (mean := self._losses.of(stream_id)) is not None:
                entries[f"loss/{name}"] = mean
        if self._num_steps and abs(self._other) > 1e-3 * abs(self._total):
            entries["loss/other"] = self._other / self._num_steps
        return entries

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restores saved figures; an empty state, as of other streams, changes nothing."""
        if not state:
            return
        num_streams = len(self._counts)
        # Version 0.1.0 also kept losses that were compared with those of a reference model.
        super().load_state_dict({name: value for name, value in state.items() if name != "compared"})
        self._gradients = {name: finite_number(value, name) for name, value in state["gradients"].items()}
        means = (self._losses.items, self._losses.sums)
        if any(len(array) != num_streams for array in (self._weights, self._counts, self._amounts, *means)):
            raise ValueError(f"the figures of the next log entry must be of {num_streams} streams")

    def _note_decision(self, step: int) -> None:
        if not is_same(self._mixing.decision, self._decision):
            self._decision = copy.deepcopy(self._mixing.decision)  # a policy may change its arrays in place
            self._decided = step
        if step % self._ledger.interval_steps == 0:
            self._write_decision()

    def _write_decision(self) -> None:
        """Writes the last decision of an interval."""
        if self._decided is not None:
            self._record_decision(self._decided)
            self._decided = None

    def _record_decision(self, step: int) -> None:
        policy, names, mixing = self._mixing.policy, self._mixing.names, self._mixing
        if not self._ledger.is_writer:
            return
        try:
            rows = rows_of(step, levels_of(policy, mixing.decision, names), names)
        except Exception as error:  # of a user's explain(): raised on this rank alone, it leaves the others waiting
            failed = f"{type(error).__name__}: {error}"
            logger.warning_once("Terms of %s are not recorded, as its explain() failed (%s).", policy.name, failed)
            level = Level(type(policy).__name__, names, mixing.decision, {})
            rows = rows_of(step, [level], names)
        self._ledger.record("decisions", rows)

    def _write_step(self, result: StepResult, shares: FloatArray, columns: _Columns, place: dict[str, float]) -> None:
        plan, contents, losses = result.plan, result.contents, result.losses
        finite = np.isfinite(losses)
        are_finite = finite[contents.items > 0].all()
        for stream_id in result.bad_streams() if self._ledger.is_writer and not are_finite else ():
            text = "Step %d: the loss of stream %r is not finite (%s); the policy does not see it."
            logger.warning(text, plan.step, self._mixing.names[stream_id], losses[stream_id])
        loss, mean = np.where(finite, losses, np.nan), float(result.sums[-1])
        self._ledger.record_streams(plan.step, self._mixing.names, {**columns, "loss": loss})
        self._ledger.record_clock(**place, loss=mean)
        sums = self._losses.add(losses, contents.items)
        self._weights = shares
        self._counts += plan.counts
        self._amounts += contents.amounts(self._mixing.policy.unit)
        if are_finite and np.isfinite(mean):
            self._num_steps += 1
            self._total += mean
            counted = sums if result.item_factors is None else sums * result.item_factors
            self._other += mean - float(counted.sum()) / max(contents.num_items, 1)
