"""Logits of a micro-batch, one vector for each sample or labelled token."""

from typing import Any

import torch
from torch import Tensor, nn

from mixer.measurements.hooks.auxiliary_passes import AuxiliaryPasses
from mixer.models.labels import IGNORED
from mixer.models.row_losses import logits_in
from mixer.run.hooks import ForwardResult
from mixer.utils.errors import InvalidValueError


def logits_of(output: Any, num_samples: int, asked_by: str) -> Tensor:
    """Returns the logits of a model's output.

    Args:
        output: The output.
        num_samples: Number of samples.
        asked_by: The method, for the error.

    Returns:
        `[num_samples, ..., num_classes]`.

    Raises:
        ValueError: If there are none, or its rows are not the samples.
    """
    logits = logits_in(output)
    if not isinstance(logits, Tensor) or logits.dim() < 2 or len(logits) != num_samples:
        found = f"'logits' of shape {list(logits.shape)}" if isinstance(logits, Tensor) else "no 'logits'"
        text = (
            f"{asked_by} compares logits, but the model's forward gives {found} for {num_samples} samples, not "
            "[num_samples, ...]. Let it return a mapping with 'logits': without losses fused with the head "
            "(use_liger_kernel=True) and return_dict=False; logits.unsqueeze(-1) of a single output; and use a "
            "data_collator that pads samples instead of packing them into one row."
        )
        raise InvalidValueError(text, option="logits", found=found)
    return logits


def softened_divergence(before: Tensor, now: Tensor, temperature: float) -> Tensor:
    """Returns `KL(p_before || p)` of the softmax of logits over a temperature.

    Args:
        before: `[..., num_classes]`.
        now: `[..., num_classes]`.
        temperature: `T`.

    Returns:
        `[...]`, in single precision at least.
    """
    wide = torch.promote_types(now.dtype, torch.float32)
    own, target = ((logits.to(wide) / temperature).log_softmax(dim=-1) for logits in (now, before))
    return nn.functional.kl_div(own, target, reduction="none", log_target=True).sum(dim=-1)


def labelled(logits: Tensor, trained: ForwardResult, passes: AuxiliaryPasses) -> Tensor | None:
    """Returns which vectors of token logits predict a label.

    Args:
        logits: `[num_samples, ..., num_classes]`.
        trained: The micro-batch.
        passes: Know whether labels are shifted.

    Returns:
        bool `[num_samples, num_positions]`, for the first positions; `None` where there is one vector a sample.
    """
    inputs = trained.micro.inputs
    labels, is_shifted = inputs.get("shift_labels"), True
    if labels is None:
        labels, is_shifted = inputs.get("labels"), not passes.shifts_labels
    if logits.dim() != 3 or not isinstance(labels, Tensor) or labels.shape != logits.shape[:2]:
        return None
    return (labels if is_shifted else labels[:, 1:]).ne(IGNORED)
