"""The losses of a step's samples after its optimizer step."""

import torch
from torch import Tensor

from mixer.loading.step import MicroBatch
from mixer.models.side_state import Snapshot
from mixer.trainer.side_runs import SideRuns


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
