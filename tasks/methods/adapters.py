"""Adapters of PEFT: which a model has, and which of them are active and trained."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, Any, TypeGuard

from torch import nn

if TYPE_CHECKING:
    from peft import PeftModel


def is_adapted(model: nn.Module) -> TypeGuard[PeftModel]:
    """Whether a model has adapters of PEFT, as `get_peft_model` gives it."""
    return "peft" in sys.modules and isinstance(model, sys.modules["peft"].PeftModel)


def activate(model: PeftModel, names: Sequence[str], trained: Collection[str]) -> None:
    """Makes adapters active, all others inactive.

    Args:
        model: The model.
        names: The active adapters; their outputs add up.
        trained: Names of the parameters that are trained; all others are frozen.
    """
    model.set_adapter(names[-1])
    if len(names) > 1:
        tuner: Any = model.base_model
        tuner.set_adapter(list(names))
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
