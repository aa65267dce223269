"""Tiny models of vision and language, and rows of theirs: a model selects a hidden layer of its vision tower."""

import torch
from torch import Tensor, nn
from transformers import CLIPVisionConfig, LlamaConfig, LlavaConfig, LlavaForConditionalGeneration

IMAGE_TOKEN, VOCABULARY, _IMAGE_SIZE, _PATCH_SIZE = 60, 64, 8, 4
_NUM_PATCHES = (_IMAGE_SIZE // _PATCH_SIZE) ** 2
_TINY = {"hidden_size": 16, "intermediate_size": 32, "num_attention_heads": 2}


def llava() -> nn.Module:
    """Makes a LLaVA whose vision tower has three layers."""
    torch.manual_seed(0)
    vision = CLIPVisionConfig(num_hidden_layers=3, image_size=_IMAGE_SIZE, patch_size=_PATCH_SIZE, **_TINY)
    text = LlamaConfig(num_hidden_layers=1, vocab_size=VOCABULARY, pad_token_id=0, **_TINY)
    return LlavaForConditionalGeneration(
        LlavaConfig(vision_config=vision, text_config=text, image_token_id=IMAGE_TOKEN)
    )


def rows(num_rows: int, num_patches: int = _NUM_PATCHES, num_labels: int = 5) -> list[dict[str, Tensor]]:
    """Makes rows of an image, its tokens and a few words, with labels of the words."""
    generator, found = torch.Generator().manual_seed(1), []
    for _ in range(num_rows):
        words = torch.randint(1, IMAGE_TOKEN, (num_labels,), generator=generator)
        ids = torch.cat([torch.full((num_patches,), IMAGE_TOKEN), words])
        pixels = torch.randn(3, _IMAGE_SIZE, _IMAGE_SIZE, generator=generator)
        row = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "pixel_values": pixels}
        found.append({**row, "labels": torch.where(ids == IMAGE_TOKEN, -100, ids)})
    return found
