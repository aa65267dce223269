"""Steps in which a fused head of TRL gives its log-probabilities by way of logits, so that its gradient can be read.

The fused head takes the weight out of its layer and never calls the layer: what the head (and with it a tied embedding)
learns would be missing from the figures of the probe.
"""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from transformers.utils import logging

logger = logging.get_logger(__name__)

_IGNORED = -100


class PlainHead:
    """Has the fused heads of a model run layer by layer for a while, those whose parameters are trained.

    Args:
        model: The model, wrapped or not.
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self._fused: list[tuple[nn.Module, Callable[..., Any]]] = []

    def begin(self) -> None:
        """Runs by way of logits from here on."""
        for module in self._model.modules():
            forward = module.__dict__.get("forward")
            if forward is not None and is_fused(forward) and _learns(module):
                logger.warning_once(
                    "The head is fused with the loss; the steps in which its gradient is probed hold all logits."
                )
                self._fused.append((module, forward))
                module.__dict__["forward"] = _Plain(forward)

    def end(self) -> None:
        """Runs fused again."""
        for module, forward in self._fused:
            module.__dict__["forward"] = forward
        self._fused.clear()


def is_fused(forward: Callable[..., Any]) -> bool:
    """Says whether a forward is one that TRL has given a fused head.

    Args:
        forward: A model's forward.

    Returns:
        Whether it can be asked for log-probabilities.
    """
    found: Any = forward
    while found is not None:  # autocast wraps it
        code = getattr(getattr(found, "__func__", found), "__code__", None)
        if "fused_lm_head" in getattr(code, "co_varnames", ()):
            return True
        found = getattr(found, "__wrapped__", None)
    return False


def _learns(module: Any) -> bool:
    return any(one.requires_grad for one in module.get_output_embeddings().parameters())


class _Plain:
    """A forward that gives what the fused one does.

    Args:
        forward: The fused one, which without being asked for that is the model's own.
    """

    def __init__(self, forward: Callable[..., Any]):
        self._forward = forward

    def __call__(
        self,
        *args: Any,
        fused_lm_head: bool = False,
        labels: Tensor | None = None,
        shift_labels: Tensor | None = None,
        num_items_in_batch: Any = None,
        **kwargs: Any,
    ) -> Any:
        """Runs the model."""
        if not fused_lm_head:
            given = {"labels": labels, "shift_labels": shift_labels, "num_items_in_batch": num_items_in_batch}
            return self._forward(*args, **kwargs, **{name: one for name, one in given.items() if one is not None})
        output = self._forward(*args, **{**kwargs, "use_cache": False})
        logits, targets = output.logits, shift_labels
        if targets is None:
            assert labels is not None, "a fused head is asked for the log-probabilities of labels"  # noqa: S101
            logits, targets = logits[:, :-1], labels[:, 1:]
        return _fused_output(logits, targets.to(logits.device), num_items_in_batch, getattr(output, "aux_loss", None))


def _fused_output(logits: Tensor, targets: Tensor, num_items: Any, aux_loss: Tensor | None) -> Any:
    """Makes what a fused head gives of `[num_rows, num_places, num_words]` logits."""
    from trl.trainer.utils import FusedCausalLMOutput

    logits = logits if logits.dtype == torch.float64 else logits.float()
    mask, words = targets.ne(_IGNORED), F.log_softmax(logits, dim=-1)
    chosen = targets.clamp(min=0).unsqueeze(-1)
    log_probs = words.gather(-1, chosen).squeeze(-1).masked_fill(~mask, 0.0)
    count = mask.sum().clamp(min=1) if num_items is None else num_items
    with torch.no_grad():
        figures = {
            "log_sum_sq_probs": torch.logsumexp(2 * words, dim=-1),
            "mean_logits": logits.mean(dim=-1),
            "is_top1": words.argmax(dim=-1) == chosen.squeeze(-1),
        }
    figures["entropy"] = -(words.exp() * words).sum(dim=-1)
    figures = {name: values.masked_fill(~mask, 0) for name, values in figures.items()}
    loss = -log_probs.sum() / count
    return FusedCausalLMOutput(loss=loss, log_probs=log_probs, label_mask=mask, aux_loss=aux_loss, **figures)
