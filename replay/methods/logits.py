"""Stored logits of samples, and their distance to the current logits."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mixer.trainer.method import ForwardResult
from mixer.trainer.side_runs import SideRuns

_IGNORED = -100
_FOR_TOKENS = 32


class Logits:
    """Reads logits off what a model gives, and compares them with what was kept of earlier ones.

    Of a model that gives a vector a sample all of it is kept, `[num_classes]`. Of one that gives a vector a token, the
    `top_k` largest are kept at the positions whose label counts, one after the other, so that padding does not matter:
    `[num_positions, 2, top_k]`, logits first and then where they stand, as floats of the same type (exact up to
    2**24). Logits in half precision are kept as float32.

    Args:
        runs: Says whether labels are shifted.
        top_k: How many logits of a vector are kept; `None` for all of a sample's, and 32 of a token's.
        asked_by: The method, for errors.
    """

    def __init__(self, runs: SideRuns, top_k: int | None, asked_by: str):
        self._runs, self._top_k, self._asked_by = runs, top_k, asked_by

    def are_of_tokens(self, trained: ForwardResult) -> bool:
        """Whether the model gives logits for each token of a micro-batch."""
        return self._labels(trained, self._of(trained)) is not None

    def to_keep(self, trained: ForwardResult) -> list[Tensor]:
        """Gives what is kept of each row of a micro-batch.

        Args:
            trained: The micro-batch and what the model gave.

        Returns:
            `[num_classes]`, `[2, top_k]` or `[num_positions, 2, top_k]` for each row.

        Raises:
            ValueError: If the model gives no logits, or its rows are not the samples.
        """
        vectors, counts, top_k = self._vectors(trained)
        vectors = vectors.detach()
        if top_k is not None:
            largest = vectors.topk(min(top_k, vectors.shape[-1]))
            vectors = torch.stack([largest.values, largest.indices.to(vectors.dtype)], dim=-2)
        return list(vectors.unbind() if counts is None else torch.split(vectors, counts))

    def squared_distances(self, trained: ForwardResult, kept: Sequence[NDArray[Any]]) -> Tensor:
        """Compares the logits of a micro-batch with kept ones.

        Args:
            trained: The micro-batch and what the model gave.
            kept: For each row what `to_keep` gave.

        Returns:
            A scalar with a graph: over samples or positions the sum, over classes the mean, of squared differences.

        Raises:
            ValueError: If something of another shape was kept.
        """
        vectors, counts, top_k = self._vectors(trained)
        own = vectors.shape[1:] if top_k is None else torch.Size([2, min(top_k, vectors.shape[-1])])
        now = [tuple(own) if counts is None else (count, *own) for count in counts or [0] * len(kept)]
        for before, shape in zip(kept, now, strict=True):
            if before.shape != shape:
                raise ValueError(
                    f"{self._asked_by}: a sample came into the buffer with logits of shape {list(before.shape)} and "
                    f"has {list(shape)} now. A sample needs the same classes, top_k and labelled positions each time: "
                    "mask and truncate in the data set, not at random in the collator, or begin with an empty buffer."
                )
        join = np.stack if counts is None else np.concatenate
        stored = torch.from_numpy(join(list(kept))).to(vectors.device, vectors.dtype)
        if top_k is not None:
            stored, places = stored.unbind(dim=-2)
            vectors = vectors.gather(-1, places.long())
        return (vectors - stored).square().flatten(1).mean(dim=1).sum()

    def _vectors(self, trained: ForwardResult) -> tuple[Tensor, list[int] | None, int | None]:
        """Gives vectors of logits with a graph, how many each row has (`None`: one), and how much of each is kept."""
        logits = self._of(trained)
        logits = logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits
        labels = self._labels(trained, logits)
        if labels is None:
            return logits, None, self._top_k
        counts = labels.ne(_IGNORED)
        vectors = logits[:, : labels.shape[1]][counts.to(logits.device)]
        return vectors, counts.sum(dim=1).tolist(), self._top_k or _FOR_TOKENS

    def _of(self, trained: ForwardResult) -> Tensor:
        output, num_samples = trained.output, len(trained.micro.stream_ids)
        logits = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
        if not isinstance(logits, Tensor) or logits.dim() == 0:
            raise ValueError(
                f"{self._asked_by} compares logits, but the model's forward gives {type(output).__name__} without "
                "any. Let it return a mapping with 'logits': leave out losses that are fused with the head (such as "
                "use_liger_kernel=True) and return_dict=False, or replay by labels alone, without this method."
            )
        if logits.dim() == 1:
            raise ValueError(
                f"{self._asked_by} compares a vector of logits for each sample, but the model gives 'logits' of shape "
                f"{list(logits.shape)}. Let its forward return [num_samples, num_outputs], such as "
                "logits.unsqueeze(-1)."
            )
        if len(logits) != num_samples:
            raise ValueError(
                f"{self._asked_by} needs logits for each sample, but the model gives {len(logits)} rows of "
                f"{num_samples} samples. Use a data_collator that pads samples instead of packing them into one row."
            )
        return logits

    def _labels(self, trained: ForwardResult, logits: Tensor) -> Tensor | None:
        """Gives the labels of each vector `[num_rows, num_positions]`; `None` if there is one vector a row."""
        inputs = trained.micro.inputs
        labels, is_shifted = inputs.get("shift_labels"), True
        if labels is None:
            labels, is_shifted = inputs.get("labels"), not self._runs.shifts_labels
        if logits.dim() != 3 or not isinstance(labels, Tensor) or labels.shape != logits.shape[:2]:
            return None
        return labels if is_shifted else labels[:, 1:]
