"""Micro-batches of one stream each, where the rows of a mixed one do not show which stream's they are."""

from dataclasses import replace
from typing import Any

import numpy as np
from transformers.utils import logging

from mixer.loading.batching import STREAMS_A_ROUND
from mixer.loading.loaded_step import StepBatch
from mixer.losses.stream_losses import StreamLosses
from mixer.mixture.step_plan import StepPlan
from mixer.models.row_losses import generates
from mixer.run.state import Basis
from mixer.trainer.agreement import StepAgreement

logger = logging.get_logger(__name__)


class StreamSeparation:
    """Separates streams into micro-batches of their own, once that turns out to be necessary.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        losses: The losses of the streams.
        needs_rows: Whether a hook needs rows of a known stream.
        agreement: Loads steps again.
    """

    def __init__(self, basis: Basis, losses: StreamLosses, needs_rows: bool, agreement: StepAgreement):
        self._trainer, _, self._run, _ = basis
        self._losses, self._needs_rows, self._agreement = losses, needs_rows, agreement
        self._has_warned = False  # of rows that belong to no stream

    def is_by_stream(self, plan: StepPlan) -> bool:
        """Whether the micro-batches of a step contain one stream each, all of them or those that are measured."""
        splitting = self._run.splitting
        is_separate = splitting.by_stream or splitting.round_robin or plan.loss_weights is not None
        return is_separate or np.count_nonzero(plan.counts) == 1

    def separated(self, batch: StepBatch) -> StepBatch:
        """Deals with losses without rows, and with a collator whose rows are not its samples.

        Packed or multiplied rows are separated by stream.

        If only some are left out, a micro-batch of one stream might have none left. It is trained on as it is then, and
        belongs to no stream, unless a hook needs its rows. Prompts stay together: the loss of their completions, whose
        mean is near 0 whatever they are worth, is measured for no stream.
        """
        splitting, (num_rows, num_samples) = self._run.splitting, self._run.step.counts.mixed_up
        if splitting.by_stream or splitting.round_robin or generates(self._trainer.args):
            return batch
        if not (num_samples or self._losses.shows_rows):
            self._separate("The loss of this model cannot be separated by row")
            return self._agreement.reload(batch)
        if not num_samples:
            return batch
        collator: Any = self._trainer.data_collator
        name = getattr(collator, "__qualname__", type(collator).__qualname__)
        found = f"data_collator={name} made {num_rows} rows of {num_samples} samples of several streams"
        if not num_rows < num_samples <= 2 * num_rows or self._needs_rows:
            self._separate(f"In step {batch.plan.step} {found}: which row is of which stream cannot be told")
            return self._agreement.reload(batch)
        if not self._has_warned and self._trainer.is_world_process_zero():
            self._has_warned = True
            logger.warning(
                "In step %d %s. Which row is of which stream cannot be told: such steps train all rows, without losses "
                "by stream. For these keep all rows, with labels of -100, or set data_collator on each Stream.",
                *(batch.plan.step, found),
            )
        return batch

    def _separate(self, reason: str) -> None:
        """Separates the streams from the next load on: all of them, or some in turns.

        Args:
            reason: The reason, as the beginning of a sentence.
        """
        run, num_streams = self._run, len(self._run.mixing.names)
        in_turns = run.present_loader.allows_round_robin and num_streams > STREAMS_A_ROUND
        run.splitting = replace(run.splitting, round_robin=in_turns, by_stream=not in_turns)
        if num_streams > 1 and self._trainer.is_world_process_zero():
            logger.warning(
                "%s, so %s.",
                reason,
                f"each step measures the losses of {STREAMS_A_ROUND} of the {num_streams} streams, in turns: these get "
                f"micro-batches of their own, up to {STREAMS_A_ROUND} more forwards per step, and the policy sees no "
                "loss of the others"
                if in_turns
                else "every micro-batch contains one stream from now on",
            )
