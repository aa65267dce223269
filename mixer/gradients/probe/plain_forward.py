"""Probed steps of compiled models, which run uncompiled, and of TRL's fused heads, which run with logits.

A fused head takes the weight out of its layer and never calls the layer: the gradient of the head (and of a tied
embedding) would be missing from the probe's statistics.
"""

import contextlib
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch._dynamo import OptimizedModule
from transformers.utils import logging

from mixer.models.labels import IGNORED
from mixer.utils.attributes import attributes_held

logger = logging.get_logger(__name__)


class PlainForward:
    """Runs the trained fused heads of a model layer by layer, and compiled code uncompiled, between `begin` and `end`.

    Args:
        model: The model, wrapped or not, compiled as a whole, in parts or not at all.
        is_homogeneous: Whether whole gradients are read, to which fused heads are no obstacle.
    """

    def __init__(self, model: nn.Module, is_homogeneous: bool):
        self._model, self._is_homogeneous = model, is_homogeneous
        self._stack = contextlib.ExitStack()

    def begin(self) -> None:
        """Starts to run uncompiled and with logits."""
        modules = list(self._model.modules())
        # torch has no public question for a module that is compiled in place.
        if any(isinstance(module, OptimizedModule) or module._compiled_call_impl is not None for module in modules):  # noqa: SLF001
            logger.warning_once("The model is compiled; the steps in which its gradients are probed run uncompiled.")
            self._stack.enter_context(torch.compiler.set_stance("force_eager"))
        for module in [] if self._is_homogeneous else modules:
            forward = module.__dict__.get("forward")
            if forward is not None and is_fused(forward) and _learns(module):
                logger.warning_once(
                    "The head is fused with the loss; the steps in which its gradient is probed hold all logits."
                )
                self._stack.enter_context(attributes_held(module, forward=_Unfused(forward)))

    def end(self) -> None:
        """Returns to compiled code and fused heads."""
        self._stack.close()


def is_fused(forward: Callable[..., Any]) -> bool:
    """Whether a model's forward is one with TRL's fused head, which returns log-probabilities on request."""
    inner: Any = forward
    while inner is not None:  # autocast wraps it
        code = getattr(getattr(inner, "__func__", inner), "__code__", None)
        if "fused_lm_head" in getattr(code, "co_varnames", ()):
            return True
        inner = getattr(inner, "__wrapped__", None)
    return False


def _learns(module: Any) -> bool:
    return any(parameter.requires_grad for parameter in module.get_output_embeddings().parameters())


class _Unfused:
    """A forward with the results of the fused one, computed from logits.

    Args:
        forward: The fused forward; without a request for log-probabilities it is the model's own.
    """

    def __init__(self, forward: Callable[..., Any]):
        self._forward = forward

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Runs the model."""
        if not kwargs.pop("fused_lm_head", False):
            return self._forward(*args, **kwargs)
        labels, targets, num_items = (
            kwargs.pop(name, None) for name in ("labels", "shift_labels", "num_items_in_batch")
        )
        output = self._forward(*args, **{**kwargs, "use_cache": False})
        logits = output.logits
        if targets is None:
            logits, targets = logits[:, :-1], labels[:, 1:]
        return _fused_output(logits, targets.to(logits.device), num_items, getattr(output, "aux_loss", None))


def _fused_output(logits: Tensor, targets: Tensor, num_items: Any, aux_loss: Tensor | None) -> Any:
    """Creates a fused head's output from logits `[num_rows, num_places, num_words]`."""
    from trl.trainer.utils import FusedCausalLMOutput

    logits = logits if logits.dtype == torch.float64 else logits.float()
    mask, words = targets.ne(IGNORED), F.log_softmax(logits, dim=-1)
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
