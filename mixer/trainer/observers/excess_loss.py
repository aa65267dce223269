"""How much more a model loses than a reference model, item by item."""

import torch
from torch import Tensor

from mixer.loading.step import MicroBatch
from mixer.models.loss_normalization import LARGEST_OTHER_SHARE
from mixer.trainer.observers.reference_model import ReferenceModel

_OWN, _REFERENCE = -2, -1  # places after the streams': micro-batches whose items are not known


class ExcessLoss:
    """Adds up `max(ℓ(x) − ℓ_ref(x), 0)` over the items `x` of a step, stream by stream.

    An item is a term of the loss: a token, or a row where a row has one label. Clipped is each item's difference, as in
    DoReMi (arXiv 2305.10429, Algorithm 1), and not their mean: these are not the same where a model loses less than the
    reference on some items and more on others.

    Args:
        num_streams: Number of streams.
        reference: The reference model.
        device: Where the sums are kept.
        dtype: In what.
    """

    def __init__(self, num_streams: int, reference: ReferenceModel, device: torch.device, dtype: torch.dtype):
        self.reference = reference
        self._start = torch.zeros(num_streams + 2, dtype=dtype, device=device)
        self.sums = self._start.clone()

    def begin(self) -> None:
        """Begins a step, or begins it anew."""
        self.sums = self._start.clone()

    def add(self, micro: MicroBatch, items: Tensor | None, loss_sum: Tensor | None) -> None:
        """Takes a micro-batch in that was trained.

        Args:
            micro: The micro-batch.
            items: `[num_rows, num_places]`: the loss of each of its items, 0 where labels are ignored; `None` if they
                are not known.
            loss_sum: A scalar: what they have to sum up to for these to be the terms of the loss; `None` if that is
                known already.
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
    """Gives by how much losses exceed those of a reference.

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
    # An infinite loss of the reference is no merit of the model.
    return torch.where(items.isfinite() & reference.isfinite(), excess, torch.nan)


def check_told_apart(sums: Tensor) -> Tensor:
    """Refuses sums over items that could not be told apart; on all ranks alike, once the sums are over all of them.

    Args:
        sums: `[num_streams + 2]`: what `ExcessLoss.sums` are over all ranks.

    Returns:
        `[num_streams]`: the streams' sums.

    Raises:
        ValueError: If some items were not known.
    """
    own, reference = sums[_OWN:].tolist()
    if own > 0:
        raise ValueError(
            "The policy needs the loss of each item (token or row) for the excess over the reference model, but this "
            "model's loss is not the sum of terms that can be told apart. Use a model whose forward computes a cross "
            "entropy over its labels, or gives logits for them; or give the policy recorded losses of the reference "
            "(reference_losses), for which the losses of streams are enough."
        )
    if reference > 0:
        raise ValueError(
            "reference_model does not show its loss on the same items (tokens or rows) as the model that is trained. "
            "Use one with the same head and tokenizer, such as a model that was trained with the same recipe; or give "
            "the policy its recorded losses (reference_losses)."
        )
    return sums[:_OWN]


def _is_other(found: Tensor, wanted: Tensor) -> Tensor:
    both_finite = found.isfinite() & wanted.isfinite()
    return both_finite & ((found - wanted).abs() > LARGEST_OTHER_SHARE * wanted.abs())
