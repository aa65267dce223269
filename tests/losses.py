"""Losses that users write, by how they are normalised, on a small causal language model with rows of unequal length."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

_IGNORED = -100
Loss = Callable[[Any, Tensor, Any], Tensor]


def ragged(num_rows: int, seed: int) -> list[dict[str, list[int]]]:
    """Makes rows of 3 to 20 tokens.

    Args:
        num_rows: How many.
        seed: Of their generator.

    Returns:
        The rows.
    """
    generator = torch.Generator().manual_seed(seed)
    sizes = torch.randint(3, 21, (num_rows,), generator=generator).tolist()
    return [{"input_ids": torch.randint(1, 64, (size,), generator=generator).tolist()} for size in sizes]


def padded(rows: list[dict[str, list[int]]]) -> dict[str, Tensor]:
    """Collates rows to the length of the longest, with labels that are ignored where there is padding.

    Args:
        rows: The rows.

    Returns:
        int64 `[num_rows, length]` each.
    """
    length = max(len(row["input_ids"]) for row in rows)
    missing = [length - len(row["input_ids"]) for row in rows]
    ids = torch.tensor([row["input_ids"] + [0] * rest for row, rest in zip(rows, missing, strict=True)])
    mask = torch.tensor([[1] * (length - rest) + [0] * rest for rest in missing])
    return {"input_ids": ids, "attention_mask": mask, "labels": torch.where(mask.bool(), ids, _IGNORED)}


def small_model(initializer_range: float = 0.3) -> LlamaForCausalLM:
    """Makes the model; its weights are large enough for its rows to have different losses, unless others are wanted."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaForCausalLM(LlamaConfig(vocab_size=64, pad_token_id=0, initializer_range=initializer_range, **sizes))


def _terms(outputs: Any, labels: Tensor) -> Tensor:
    logits, targets = outputs.logits[:, :-1], labels[:, 1:]
    return F.cross_entropy(logits.transpose(1, 2), targets, reduction="none", ignore_index=_IGNORED)


def _counts(labels: Tensor) -> Tensor:
    return labels[:, 1:].ne(_IGNORED).sum(dim=1).clamp(min=1)


def token_mean(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The mean over all tokens."""
    return _terms(outputs, labels).sum() / _counts(labels).sum()


def token_sum_over_items(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The sum over all tokens, by the number that the Trainer tells."""
    count = _counts(labels).sum() if num_items_in_batch is None else num_items_in_batch
    return _terms(outputs, labels).sum() / count


def scaled_sum(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The sum over all tokens, by a number of the user's own."""
    return _terms(outputs, labels).sum() * 0.01


def mean_of_row_means(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The mean over rows of the mean over each row's tokens."""
    return (_terms(outputs, labels).sum(dim=1) / _counts(labels)).mean()


def mean_of_row_sums(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The mean over rows of the sum over each row's tokens."""
    return _terms(outputs, labels).sum(dim=1).mean()


def focal(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """A mean over tokens of terms that are no cross entropy."""
    terms = _terms(outputs, labels)
    return ((1 - terms.neg().exp()) ** 2 * terms).sum() / _counts(labels).sum()


def z_loss(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The mean over tokens, and that of log² Z over all places, padding too."""
    return token_mean(outputs, labels) + 0.1 * outputs.logits.logsumexp(dim=-1).square().mean()


def class_weighted(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """A cross entropy with a weight for each class, divided by the weights of the labels."""
    weights = torch.linspace(0.1, 2.0, outputs.logits.shape[-1])
    return F.cross_entropy(outputs.logits[:, :-1].transpose(1, 2), labels[:, 1:], weight=weights)


def root_mean_square(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The root of the mean of squared terms."""
    mean = _terms(outputs, labels).square().sum() / _counts(labels).sum()
    return mean.sqrt() * 1.0  # the Trainer multiplies in place, which a root does not bear


def contrastive(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """Each row against all others of its batch (InfoNCE, arXiv:1807.03748)."""
    ends = F.normalize(outputs.logits[:, -1], dim=-1)
    starts = F.normalize(outputs.logits[:, 0], dim=-1)
    return F.cross_entropy(ends @ starts.T / 0.1, torch.arange(len(labels)))


def hard_half(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """The mean over the half of the tokens with the largest terms."""
    terms = _terms(outputs, labels)[labels[:, 1:].ne(_IGNORED)].sort().values
    return terms[len(terms) // 2 :].mean()


# Name, loss (`None`: the model's own), and whether its gradient is that of the whole batch however it is cut.
LOSSES: dict[str, tuple[Loss | None, bool]] = {
    "the model's own": (None, True),
    "mean over tokens": (token_mean, True),
    "sum over tokens / num_items_in_batch": (token_sum_over_items, True),
    "0.01 x sum over tokens": (scaled_sum, True),
    "mean of rows' means": (mean_of_row_means, True),
    "mean of rows' sums": (mean_of_row_sums, True),
    "focal, mean over tokens": (focal, True),
    "z-loss over all places": (z_loss, False),
    "class-weighted cross entropy": (class_weighted, False),
    "root mean square": (root_mean_square, False),
    "in-batch contrastive": (contrastive, False),
}


# What rows cannot show, and is declared: terms of its own, or a number of its own.
DECLARED = {"0.01 x sum over tokens": "sum", "focal, mean over tokens": "mean"}


def whole_gradient(loss: Loss | None, rows: list[dict[str, list[int]]]) -> Tensor:
    """Computes the gradient of one process that has all rows in one batch.

    Args:
        loss: The loss; `None` for the model's own.
        rows: The rows.

    Returns:
        `[num_parameters]`.
    """
    model, batch = small_model(), padded(rows)
    labels = batch.pop("labels") if loss is not None else None
    outputs = model(**batch)
    (outputs.loss if loss is None else loss(outputs, labels, None)).backward()  # type: ignore[arg-type]
    return torch.cat([parameter.grad.flatten() for parameter in model.parameters() if parameter.grad is not None])
