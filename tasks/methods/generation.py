"""Sampling text from a language model in training, without a trace in the global random state."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from mixer.utils.random_state import seed_generators

if TYPE_CHECKING:
    from mixer.measure.auxiliary_passes import AuxiliaryPasses


def check_generates(model: nn.Module, asked_by: str) -> None:
    """Raises a `ValueError` if a model does not write text from left to right.

    Args:
        model: The model.
        asked_by: The method, for the error.
    """
    config = getattr(model, "config", None)
    if not callable(getattr(model, "generate", None)) or getattr(config, "is_encoder_decoder", False):
        raise ValueError(
            f"{asked_by} samples from the model, but a {type(model).__name__} does not write text from left to right. "
            "Use a causal language model of transformers, such as AutoModelForCausalLM gives."
        )


def sample(
    runs: AuxiliaryPasses, prompts: Tensor, mask: Tensor, max_new_tokens: int, key: tuple[int, ...], **options: Any
) -> Tensor:
    """Samples continuations of prompts.

    Args:
        runs: Runs the model.
        prompts: int64 `[num_rows, num_tokens]`, padded on the left.
        mask: int64 `[num_rows, num_tokens]`: 0 for padding.
        max_new_tokens: Largest number of tokens to add.
        key: Integers that determine the sample.
        **options: Further options of transformers' `GenerationConfig`, such as `top_k`.

    Returns:
        int64 `[num_rows, num_new_tokens]`; -1 after the end of a row.
    """
    from transformers import GenerationConfig

    model: Any = runs.model
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True,
        max_new_tokens=max_new_tokens,
        eos_token_id=_ends_of(model) or None,
        pad_token_id=padding_of(model),
        **{"top_k": 0, **options},
    )
    with runs.without_gradients(training=False):  # which restores the random state
        _seed(prompts.device, key)
        tokens = model.generate(input_ids=prompts, attention_mask=mask, generation_config=config)
    new: Tensor = tokens[:, prompts.shape[1] :]
    is_end = torch.isin(new, torch.tensor(_ends_of(model), dtype=new.dtype, device=new.device)).long()
    return new.masked_fill(is_end.cumsum(dim=1) > is_end, -1)


def padding_of(model: Any) -> int:
    """Returns the token that fills rows: that of padding, or the end of text, or 0."""
    return next((token for token in (model.config.pad_token_id, *_ends_of(model)) if token is not None), 0)


def _ends_of(model: Any) -> list[int]:
    """Returns the tokens that end a text."""
    ends = model.generation_config.eos_token_id
    return ends if isinstance(ends, list) else [] if ends is None else [ends]


def _seed(device: torch.device, key: tuple[int, ...]) -> None:
    seed_generators(*key)
    if device.type != "cpu":
        torch.get_device_module(device).manual_seed(torch.default_generator.initial_seed())
