"""Whether a model's loss is that of the next token, so that the first label of a row is no term of it."""

import inspect
from typing import Any

from transformers.loss.loss_utils import ForCausalLMLoss

from mixer.models.inputs import inner_model


def shifts_labels(model: Any, told: bool) -> bool:
    """Finds out whether a model shifts its labels by itself.

    The Trainer goes by the name of the class (`...ForCausalLM`). Heads of other names, `GPT2LMHeadModel` among them,
    are given the same loss function where their forward asks for one, and shift too.

    Args:
        model: The model, not wrapped for distributed training; one of peft is looked into.
        told: What the Trainer takes it for.

    Returns:
        Whether a row of L labels has L - 1 terms.
    """
    inner = inner_model(model)
    if told or getattr(getattr(inner, "config", None), "is_encoder_decoder", False):
        return told
    # A forward that computes its loss by itself has that loss function too, and makes no use of it.
    forward = inspect.unwrap(type(inner).forward)
    asks = "loss_function" in getattr(getattr(forward, "__code__", None), "co_names", ())
    return asks and getattr(inner, "loss_function", None) is ForCausalLMLoss
