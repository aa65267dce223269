"""The small models that stand here for those of the hub: a base language model and an encoder, with one tokenizer."""

from pathlib import Path

import datasets
from tokenizers import Tokenizer, decoders
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from tokenizers.trainers import BpeTrainer
from transformers import (
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    ModernBertConfig,
    ModernBertModel,
    PreTrainedTokenizerFast,
    Trainer,
    TrainingArguments,
    set_seed,
)

VOCABULARY_SIZE = 2_048
BLOCK_LENGTH = 128
SPECIAL = ("<pad>", "<end>", "<user>", "<assistant>")
CHAT_TEMPLATE = (
    "{% for message in messages %}{% if message['role'] == 'assistant' %}"
    "<assistant>{% generation %}{{ message['content'] }}<end>{% endgeneration %}"
    "{% else %}<user>{{ message['content'] }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def write_base(folder: Path, data: Path, num_steps: int) -> None:
    """Trains a language model on English, and a tokenizer on all texts, and saves both.

    Args:
        folder: Where to save them.
        data: Where `examples.data` wrote its files.
        num_steps: How long to train.
    """
    tokenizer = _learned_tokenizer(data)
    english = (data / "text" / "english" / "train.txt").read_text(encoding="utf-8").splitlines()
    set_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1_024,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
    )
    args = TrainingArguments(
        str(folder),
        max_steps=num_steps,
        per_device_train_batch_size=8,
        learning_rate=5e-3,
        lr_scheduler_type="cosine",
        warmup_steps=10,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        logging_steps=100,
        use_cpu=True,
    )
    trainer = Trainer(LlamaForCausalLM(config), args, train_dataset=_blocks(tokenizer, english))
    trainer.train()
    trainer.model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def write_encoder(folder: Path, base: Path) -> None:
    """Saves an encoder that has learned nothing yet.

    Args:
        folder: Where to save it.
        base: The folder of the base model, whose tokenizer it takes.
    """
    tokenizer = AutoTokenizer.from_pretrained(base)
    set_seed(0)
    config = ModernBertConfig(
        vocab_size=VOCABULARY_SIZE,
        hidden_size=96,
        intermediate_size=128,
        num_hidden_layers=1,
        num_attention_heads=4,
        max_position_embeddings=128,
        classifier_pooling="mean",
        initializer_range=0.1,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=None,
        eos_token_id=None,
        cls_token_id=None,
        sep_token_id=None,
    )
    ModernBertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _learned_tokenizer(data: Path) -> PreTrainedTokenizerFast:
    inner = Tokenizer(BPE())
    inner.pre_tokenizer, inner.decoder = ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    trainer = BpeTrainer(
        vocab_size=VOCABULARY_SIZE,
        special_tokens=list(SPECIAL),
        initial_alphabet=ByteLevel.alphabet(),
        show_progress=False,
    )
    files = [path for folder in ("chat", "text") for path in sorted((data / folder).rglob("*.*"))]
    inner.train([str(path) for path in files], trainer)
    pad, end, *roles = SPECIAL
    return PreTrainedTokenizerFast(
        tokenizer_object=inner,
        pad_token=pad,
        eos_token=end,
        additional_special_tokens=roles,
        chat_template=CHAT_TEMPLATE,
        model_max_length=1_024,
    )


def _blocks(tokenizer: PreTrainedTokenizerFast, texts: list[str]) -> datasets.Dataset:
    ids: list[int] = []
    for row in tokenizer(texts)["input_ids"]:
        ids += [*row, tokenizer.eos_token_id]
    blocks = [ids[start : start + BLOCK_LENGTH] for start in range(0, len(ids) - BLOCK_LENGTH + 1, BLOCK_LENGTH)]
    return datasets.Dataset.from_dict({"input_ids": blocks, "labels": blocks})
