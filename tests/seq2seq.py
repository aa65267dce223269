"""A small encoder-decoder model and pairs of texts, for the tests of `MixingSeq2SeqTrainer`."""

from pathlib import Path
from typing import Any

import datasets
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BartConfig,
    BartForConditionalGeneration,
    PreTrainedTokenizerFast,
    Seq2SeqTrainingArguments,
    T5Config,
    T5ForConditionalGeneration,
)

from tests.helpers import plain_options

WORDS = [f"w{number}" for number in range(20)]
SPECIAL = ["<pad>", "</s>", "<unk>"]


def tokenizer() -> PreTrainedTokenizerFast:
    """Numbers the words."""
    vocabulary = {word: number for number, word in enumerate(SPECIAL + WORDS)}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.Whitespace()
    return PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=32
    )


def pairs(num_samples: int, seed: int) -> datasets.Dataset:
    """Numbered words and, as labels, the same ones backwards; both of different length."""
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for _ in range(num_samples):
        size = int(torch.randint(2, 8, (1,), generator=generator))
        ids = torch.randint(len(SPECIAL), len(SPECIAL) + len(WORDS), (size,), generator=generator).tolist()
        labels = [*ids[::-1][: size - size % 2], 1]
        rows.append({"input_ids": ids, "attention_mask": [1] * size, "labels": labels})
    return datasets.Dataset.from_list(rows)


def model(name: str = "t5") -> Any:
    """Gives a model without dropout, always the same one."""
    torch.manual_seed(0)
    vocabulary = len(SPECIAL) + len(WORDS)
    if name == "t5":
        sizes = {"d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 1, "num_heads": 2, "dropout_rate": 0.0}
        return T5ForConditionalGeneration(T5Config(vocab_size=vocabulary, decoder_start_token_id=0, **sizes))
    halves = {"layers": 1, "attention_heads": 2, "ffn_dim": 32}
    both = {f"{half}_{key}": value for half in ("encoder", "decoder") for key, value in halves.items()}
    ends = {"pad_token_id": 0, "bos_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    ends["forced_eos_token_id"] = 1
    config = BartConfig(vocab_size=vocabulary, d_model=16, max_position_embeddings=32, dropout=0.0, **both, **ends)
    return BartForConditionalGeneration(config)


def arguments(folder: str | Path, **changes: Any) -> Seq2SeqTrainingArguments:
    own = {"per_device_train_batch_size": 4, "max_grad_norm": 1.0}
    return Seq2SeqTrainingArguments(**plain_options(folder, **{**own, **changes}))
