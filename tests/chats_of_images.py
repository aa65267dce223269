"""Tiny models of vision and language with processors of their own, and conversations about pictures."""

from typing import Any

import datasets
import numpy as np
import torch
from PIL import Image
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlavaProcessor,
    PreTrainedTokenizerFast,
    ProcessorMixin,
    Qwen2_5_VLConfig,
    Qwen2_5_VLForConditionalGeneration,
    Qwen2_5_VLProcessor,
)
from transformers.models.clip.image_processing_pil_clip import CLIPImageProcessorPil
from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

from tests import vision

WORDS = [f"w{number}" for number in range(55)]  # with five tokens before them, images begin at 60
KINDS = ("llava", "qwen")
SPECIAL = {"llava": ["<image>"], "qwen": ["<|vision_start|>", "<|image_pad|>", "<|vision_end|>", "<|video_pad|>"]}
_PICTURE = {"llava": "<image> ", "qwen": "<|vision_start|><|image_pad|><|vision_end|> "}
_TEXT: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 32,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "vocab_size": 64,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "bos_token_id": 1,
}


class StillProcessor(Qwen2_5_VLProcessor):
    """The processor without that of videos, which needs torchvision."""

    def __init__(self, image_processor: Any = None, tokenizer: Any = None, chat_template: str | None = None):
        self.image_token, self.video_token = "<|image_pad|>", "<|video_pad|>"
        self.image_token_id, self.video_token_id = tokenizer.convert_tokens_to_ids([self.image_token, self.video_token])
        ProcessorMixin.__init__(self, image_processor, tokenizer, chat_template=chat_template)


def _template(kind: str) -> str:
    parts = (
        "{% for part in message['content'] %}{% if part['type'] == 'image' %}" + _PICTURE[kind] + "{% else %}"
        "{{ part['text'] }} {% endif %}{% endfor %}"
    )
    return (
        "{% for message in messages %}<|{{ message['role'] }}|> "
        "{% if message['role'] == 'assistant' %}{% generation %}" + parts + "<eos> {% endgeneration %}"
        "{% else %}" + parts + "{% endif %}{% endfor %}{% if add_generation_prompt %}<|assistant|> {% endif %}"
    )


def processor_of(kind: str) -> Any:
    """A processor whose images have 8 x 8 pixels."""
    words = ["<pad>", "<eos>", "<unk>", "<|user|>", "<|assistant|>", *WORDS]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>")
    tokenizer.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>", *SPECIAL[kind]]})
    if kind == "llava":
        images: Any = CLIPImageProcessorPil(size={"shortest_edge": 8}, crop_size={"height": 8, "width": 8})
        own = {"patch_size": 4, "vision_feature_select_strategy": "default", "num_additional_image_tokens": 1}
        return LlavaProcessor(images, tokenizer, chat_template=_template(kind), **own)
    size = {"shortest_edge": 8 * 8, "longest_edge": 16 * 16}
    images = Qwen2VLImageProcessorPil(size=size, patch_size=4, merge_size=2, temporal_patch_size=2)
    return StillProcessor(images, tokenizer, chat_template=_template(kind))


def model_of(kind: str) -> Any:
    """A model whose vision tower reads patches of 4 x 4 pixels."""
    if kind == "llava":
        return vision.model_of("Llava")
    torch.manual_seed(0)
    tower = {"depth": 2, "num_heads": 2, "patch_size": 4, "out_hidden_size": 16, "window_size": 16}
    tower |= {"hidden_size": 16, "intermediate_size": 32, "fullatt_block_indexes": [1]}
    rope = {"rope_type": "default", "mrope_section": [1, 1, 2], "rope_theta": 10000.0}
    ids = {"image_token_id": 61, "video_token_id": 63, "vision_start_token_id": 60, "vision_end_token_id": 62}
    config = Qwen2_5_VLConfig(vision_config=tower, text_config={**_TEXT, "rope_parameters": rope}, **ids)
    return Qwen2_5_VLForConditionalGeneration(config)


def pictures(count: int, seed: int, num_images: int = 1) -> datasets.Dataset:
    """Conversations about pictures of different sizes."""
    generator = np.random.default_rng(seed)

    def words(most: int) -> dict[str, str]:
        return {"type": "text", "text": " ".join(generator.choice(WORDS, size=generator.integers(1, most)))}

    rows = [
        {
            "messages": [
                {"role": "user", "content": [*[{"type": "image", "text": None}] * num_images, words(6)]},
                {"role": "assistant", "content": [words(6)]},
            ],
            "images": [_picture(generator) for _ in range(num_images)],
        }
        for _ in range(count)
    ]
    part = {"type": datasets.Value("string"), "text": datasets.Value("string")}
    turn = {"role": datasets.Value("string"), "content": datasets.List(part)}
    features = {"messages": datasets.List(turn), "images": datasets.List(datasets.Image())}
    return datasets.Dataset.from_list(rows, features=datasets.Features(features))


def _picture(generator: np.random.Generator) -> Image.Image:
    height, width = generator.integers(8, 24, size=2)
    return Image.fromarray(generator.integers(0, 256, size=(height, width, 3), dtype=np.uint8))
