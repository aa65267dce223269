"""Sampling of texts from a causal language model."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import GenerationConfig

from mixer.utils.errors import InvalidValueError
from mixer.utils.random_state import seed_generators
from mixer.utils.ranges import check_count, check_range

# Else transformers takes them of the model's generation configuration.
_PLAIN = {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0, "min_p": 0.0, "typical_p": 1.0, "num_beams": 1}


@dataclass(frozen=True)
class Sampling:
    """How a model samples texts.

    Args:
        max_new_tokens: Most tokens that are added to a text.
        temperature: Divides the logits, above 0.
        top_p: Share of the probability from which a token is drawn, the likeliest tokens first.
        top_k: Number of the likeliest tokens from which one is drawn; 0 for all.

    Raises:
        ValueError: If a value is outside its range.
    """

    max_new_tokens: int = 128
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0

    def __post_init__(self) -> None:
        check_count("max_new_tokens", self.max_new_tokens, 1, "128 is usual")
        check_range("temperature", self.temperature, 1e-6, float("inf"), "1 samples the model as it is")
        check_range("top_p", self.top_p, 1e-6, 1.0, "1 draws from all tokens")
        check_count("top_k", self.top_k, 0, "0 draws from all tokens")


def sample(model: Any, prompts: Tensor, mask: Tensor, sampling: Sampling, key: Sequence[int]) -> Tensor:
    """Samples continuations of prompts; sets the global random state.

    Args:
        model: The model, in evaluation mode.
        prompts: int64 `[num_rows, num_tokens]`, padded on the left.
        mask: int64 `[num_rows, num_tokens]`: 0 for padding.
        sampling: How to sample.
        key: Integers that determine the sample.

    Returns:
        int64 `[num_rows, num_new_tokens]`; -1 after the end of a row.
    """
    ends = ends_of(model)
    config = GenerationConfig(  # type: ignore[no-untyped-call]
        do_sample=True,
        max_new_tokens=sampling.max_new_tokens,
        eos_token_id=ends or None,
        pad_token_id=padding_of(model),
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        top_k=sampling.top_k,
        **_PLAIN,
    )
    seed_generators(*key)
    if (device := prompts.device).type != "cpu":
        torch.get_device_module(device).manual_seed(torch.default_generator.initial_seed())
    tokens = model.generate(input_ids=prompts, attention_mask=mask, generation_config=config)
    new: Tensor = tokens[:, prompts.shape[1] :]
    is_end = torch.isin(new, torch.tensor(ends, dtype=new.dtype, device=new.device)).long()
    return new.masked_fill(is_end.cumsum(dim=1) > is_end, -1)


def padded(prompts: Sequence[list[int]], padding: int, on_the_right: bool = False) -> tuple[Tensor, Tensor]:
    """Pads prompts to the length of the longest.

    Args:
        prompts: Their tokens.
        padding: The token of padding.
        on_the_right: Whether it comes after a prompt.

    Returns:
        int64 `[num_prompts, num_tokens]` each: the tokens, and the mask, 0 for padding.
    """
    longest = max(map(len, prompts))
    ids = torch.full((len(prompts), longest), padding)
    mask = torch.zeros_like(ids)
    for row, prompt in enumerate(prompts):
        place = slice(len(prompt)) if on_the_right else slice(longest - len(prompt), longest)
        ids[row, place], mask[row, place] = torch.tensor(prompt), 1
    return ids, mask


def check_generates(model: nn.Module) -> None:
    """Raises a `ValueError` if a model does not write text from left to right."""
    config = getattr(model, "config", None)
    if not callable(getattr(model, "generate", None)) or getattr(config, "is_encoder_decoder", False):
        raise InvalidValueError.about("model", f"must write text, as a causal one does, got a {type(model).__name__}.")


def padding_of(model: Any) -> int:
    """Returns the token that fills rows: that of padding, or the end of text, or 0."""
    return next((token for token in (model.config.pad_token_id, *ends_of(model)) if token is not None), 0)


def ends_of(model: Any) -> list[int]:
    """Returns the tokens that end a text."""
    ends = model.generation_config.eos_token_id
    if ends is None:
        return []
    return ends if isinstance(ends, list) else [ends]
