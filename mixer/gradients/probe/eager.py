"""Steps of a compiled model that run uncompiled, so that its layers can be read."""

import contextlib

import torch
from torch import nn
from torch._dynamo import OptimizedModule
from transformers.utils import logging

logger = logging.get_logger(__name__)


class Eager:
    """Has compiled code run uncompiled for a while.

    Args:
        model: The model, compiled or not, as a whole or in parts.
    """

    def __init__(self, model: nn.Module):
        self._model = model
        self._stack = contextlib.ExitStack()

    def begin(self) -> None:
        """Runs uncompiled from here on."""
        if any(
            isinstance(one, OptimizedModule) or one._compiled_call_impl is not None for one in self._model.modules()
        ):
            logger.warning_once("The model is compiled; the steps in which its gradients are probed run uncompiled.")
            self._stack.enter_context(torch.compiler.set_stance("force_eager"))

    def end(self) -> None:
        """Runs compiled again."""
        self._stack.close()
