"""Tiny models of vision and language that select hidden layers of their vision tower, and rows of theirs."""

from collections.abc import Callable
from typing import Any

import torch
import transformers
from torch import Tensor, nn
from transformers import (
    CLIPVisionConfig,
    InternVLVisionConfig,
    LlamaConfig,
    MistralConfig,
    PixtralVisionConfig,
    SiglipVisionConfig,
)

IMAGE, VIDEO, VOCABULARY, _SIZE, _PATCH = 60, 59, 64, 8, 4
_TINY = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}
_TOWER: dict[str, Any] = {**_TINY, "num_hidden_layers": 3, "image_size": _SIZE, "patch_size": _PATCH}
_TEXT: dict[str, Any] = {**_TINY, "num_hidden_layers": 1, "num_key_value_heads": 2, "vocab_size": VOCABULARY}
_GRID = {"image_grid_pinpoints": [[_SIZE, _SIZE]]}
_NUM_OF_GRID = 10  # the image, its only part, and an end of each of two lines

# By family: its vision tower, the tokens of an image, and options of its own.
FAMILIES: dict[str, tuple[Callable[..., Any], int, dict[str, Any]]] = {
    "Llava": (CLIPVisionConfig, 4, {}),
    "VipLlava": (CLIPVisionConfig, 4, {"vision_feature_layers": [-2, -1, 1]}),
    "VideoLlava": (CLIPVisionConfig, 4, {"video_token_index": VIDEO}),
    "AyaVision": (SiglipVisionConfig, 1, {"downsample_factor": 2}),
    "Cohere2Vision": (SiglipVisionConfig, 1, {"downsample_factor": 2, "alignment_intermediate_size": 32}),
    "Mistral3": (PixtralVisionConfig, 4, {"spatial_merge_size": 1, "vision_feature_layer": -2}),
    "InternVL": (InternVLVisionConfig, 1, {"vision_feature_layer": -2}),
    "LlavaNext": (CLIPVisionConfig, _NUM_OF_GRID, _GRID),
    "LlavaNextVideo": (CLIPVisionConfig, _NUM_OF_GRID, {**_GRID, "video_token_id": VIDEO}),
    "LlavaOnevision": (SiglipVisionConfig, _NUM_OF_GRID, {**_GRID, "video_token_id": VIDEO}),
}


def model_of(family: str = "Llava") -> nn.Module:
    """Makes a model of a family with a vision tower of three layers."""
    torch.manual_seed(0)
    tower, _, own = FAMILIES[family]
    sides = {"image_size": [_SIZE] * 2, "patch_size": [_PATCH] * 2} if family == "InternVL" else {}
    text = (MistralConfig if family == "Mistral3" else LlamaConfig)(**_TEXT, pad_token_id=0, head_dim=8)
    parts = {"vision_config": tower(**{**_TOWER, **sides}), "text_config": text}
    config = getattr(transformers, f"{family}Config")(**parts, image_token_id=IMAGE, image_token_index=IMAGE, **own)
    model: nn.Module = getattr(transformers, f"{family}ForConditionalGeneration")(config)
    return model


def rows_of(family: str = "Llava", num_rows: int = 12, num_words: int = 5) -> list[dict[str, Tensor]]:
    """Makes rows of an image, its tokens and a few words, with labels of the words."""
    _, num_tokens, own = FAMILIES[family]
    has_grid = "image_grid_pinpoints" in own
    name = "pixel_values_images" if family == "VideoLlava" else "pixel_values"
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(num_rows):
        words = torch.randint(1, VIDEO, (num_words,), generator=generator)
        ids = torch.cat([torch.full((num_tokens,), IMAGE), words])
        pixels = torch.randn(*([2] if has_grid else []), 3, _SIZE, _SIZE, generator=generator)
        row = {"input_ids": ids, "attention_mask": torch.ones_like(ids), name: pixels}
        if has_grid or family == "Mistral3":
            row["image_sizes"] = torch.tensor([_SIZE, _SIZE])
        found.append({**row, "labels": torch.where(ids == IMAGE, -100, ids)})
    return found
