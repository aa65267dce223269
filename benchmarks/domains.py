"""The demo's domains and model, for benchmarks that train on them."""

from collections.abc import Mapping, Sequence

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tasks.text_domains import ByteBlocks, cpp_headers, english_docstrings, python_source

_SPREAD = 8  # one in so many validation blocks is taken: few blocks in a row would be of one or two files
_SOURCES = {"python": python_source, "cpp": cpp_headers, "english": english_docstrings}

Data = Mapping[str, Mapping[str, ByteBlocks]]


def read_domains(num_blocks: Sequence[int], num_validation_blocks: int, block_length: int) -> Data:
    """Reads the text.

    Args:
        num_blocks: Blocks of Python, C++ and English to train on.
        num_validation_blocks: Blocks that each is evaluated on.
        block_length: Bytes of a block.

    Returns:
        The sets `"train"` and `"validation"` of each domain.
    """
    data = {}
    for (name, source), count in zip(_SOURCES.items(), num_blocks, strict=True):
        splits = source(count, _SPREAD * num_validation_blocks, block_length)
        data[name] = {**splits, "validation": ByteBlocks(splits["validation"].blocks[::_SPREAD].numpy())}
    return data


def new_model(hidden: int, layers: int, block_length: int, seed: int) -> LlamaForCausalLM:
    """Builds a byte-level Llama, the same for the same seed.

    Args:
        hidden: Its width.
        layers: Its depth.
        block_length: Bytes of a block.
        seed: Seed of its weights.

    Returns:
        The model.
    """
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=256,
        hidden_size=hidden,
        intermediate_size=3 * hidden,
        num_hidden_layers=layers,
        num_attention_heads=4,
        max_position_embeddings=block_length,
        tie_word_embeddings=True,
    )
    return LlamaForCausalLM(config)
