"""Tokenizers that are trained on a few lines, for tests and their recipes."""

from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast

from mixer.tools.recipe.tiny import CHATML as CHATML, byte_tokenizer

MARKED = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' }}{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>' }}{% endgeneration %}{{ '\n' }}"
    "{% else %}{{ message['content'] + '<|im_end|>\n' }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)


byte_level = byte_tokenizer  # golden sequences can be told by looking


def of_words(words: str, **changes: Any) -> PreTrainedTokenizerFast:
    """A token for each word, put between [CLS] and [SEP] as an encoder's does."""
    special = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"]
    vocabulary = {word: number for number, word in enumerate([*special, *words.split()])}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[("[CLS]", 1), ("[SEP]", 2)]
    )
    names = {"pad_token": "[PAD]", "cls_token": "[CLS]", "sep_token": "[SEP]", "mask_token": "[MASK]"}
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="[UNK]", **{**names, **changes})
