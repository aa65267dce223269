"""What the samples of a step lose once more after its optimizer step."""

import torch
from torch import Tensor

from mixer.loading.step import MicroBatch
from mixer.models.side_state import Snapshot
from mixer.trainer.side_runs import SideRuns


class LossesAfter:
    """Runs the micro-batches of a step a second time, without gradients, after the step that they led to.

    Both losses of FAMO (arXiv 2306.03792, Algorithm 1) are of the same batch. The second forward is as near to the
    first as can be: in training mode, and with the random numbers that the first began with, so that dropout leaves out
    the same activations and what differs is what the step changed. In evaluation mode every loss would fall by what
    dropout costs, and by more in some streams than in others. Random states and running statistics are put back
    afterwards.

    Until then the inputs of the step are kept, and for each micro-batch the state of the random generators.

    Args:
        runs: The runs beside the training.
        device: Where the model is.
        dtype: What sums are kept in.
    """

    def __init__(self, runs: SideRuns, device: torch.device, dtype: torch.dtype):
        self._runs, self._device, self._dtype = runs, device, dtype
        self._kept: list[tuple[MicroBatch, Snapshot]] = []

    def begin(self) -> None:
        """Begins a step, or begins it anew."""
        self._kept = []

    def keep(self, micro: MicroBatch) -> None:
        """Notes what a micro-batch begins with; to be called right before it is trained.

        Args:
            micro: The micro-batch.
        """
        self._kept.append((micro, Snapshot(None, self._device)))

    def measure(self, num_streams: int) -> Tensor:
        """Runs what was kept, and lets go of it; all ranks have to call it.

        Args:
            num_streams: Number of streams.

        Returns:
            `[num_streams]`: this rank's sums of the item losses of each stream, on the device; NaN where those of
            several streams cannot be told apart.
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
    is_told = bool((micro.stream_ids == micro.stream_ids[0]).all())
    sums[ids] += mean.to(sums) * num_items if is_told else float("nan")
