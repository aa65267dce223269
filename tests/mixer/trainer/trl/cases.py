"""Tokenizers, models and data sets of conversations that tests of TRL's trainers share."""

from pathlib import Path
from typing import Any

import datasets
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    MixtralConfig,
    MixtralForCausalLM,
    PreTrainedTokenizerFast,
)
from trl import DPOConfig, DPOTrainer, RewardConfig, RewardTrainer

from mixer import MixingMixin, MixingSFTConfig, MixingSFTTrainer
from tests.helpers import mixing_trainer, plain_options

WORDS = [f"w{number}" for number in range(40)]
TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|> "
    "{% if message['role'] == 'assistant' %}{% generation %}{{ message['content'] }} <eos> {% endgeneration %}"
    "{% else %}{{ message['content'] }} {% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|> {% endif %}"
)


def tokenizer() -> PreTrainedTokenizerFast:
    words = ["<pad>", "<eos>", "<unk>", "<|user|>", "<|assistant|>", *WORDS]
    inner = Tokenizer(models.WordLevel({word: number for number, word in enumerate(words)}, unk_token="<unk>"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    made = PreTrainedTokenizerFast(
        tokenizer_object=inner, pad_token="<pad>", eos_token="<eos>", unk_token="<unk>", chat_template=TEMPLATE
    )
    made.add_special_tokens({"additional_special_tokens": ["<|user|>", "<|assistant|>"]})
    return made


def model_of(name: str = "llama", dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    common = {"vocab_size": 45, "num_key_value_heads": 2, "pad_token_id": 0, "eos_token_id": 1, "bos_token_id": 1}
    if name == "llama":
        model: Any = LlamaForCausalLM(LlamaConfig(**sizes, **common))
    elif name == "mixtral":
        experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "router_aux_loss_coef": 0.02}
        model = MixtralForCausalLM(MixtralConfig(**sizes, **common, **experts, output_router_logits=True))
    else:
        assert name == "gpt2"
        dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
        config = GPT2Config(vocab_size=45, n_embd=16, n_layer=1, n_head=2, bos_token_id=1, eos_token_id=1, **dropout)
        model = GPT2LMHeadModel(config)
    return model.to(dtype)


def _words(generator: torch.Generator, least: int = 1, most: int = 7) -> str:
    size = int(torch.randint(least, most + 1, (1,), generator=generator))
    return " ".join(WORDS[int(place)] for place in torch.randint(0, len(WORDS), (size,), generator=generator))


def chats(num_samples: int, seed: int) -> datasets.Dataset:
    generator = torch.Generator().manual_seed(seed)

    def turn(role: str) -> dict[str, str]:
        return {"role": role, "content": _words(generator)}

    rows = [{"messages": [turn("user"), turn("assistant")] * (1 + row % 2)} for row in range(num_samples)]
    return datasets.Dataset.from_list(rows)


def completions(num_samples: int, seed: int) -> datasets.Dataset:
    generator = torch.Generator().manual_seed(seed)
    rows = [{"prompt": _words(generator, 2), "completion": " " + _words(generator)} for _ in range(num_samples)]
    return datasets.Dataset.from_list(rows)


def texts(num_samples: int, seed: int) -> datasets.Dataset:
    generator = torch.Generator().manual_seed(seed)
    return datasets.Dataset.from_list([{"text": _words(generator, 3, 12)} for _ in range(num_samples)])


def pairs(num_samples: int, seed: int) -> datasets.Dataset:
    generator = torch.Generator().manual_seed(seed)
    names = ("prompt", "chosen", "rejected")
    return datasets.Dataset.from_list([{name: " " + _words(generator) for name in names} for _ in range(num_samples)])


def two_pairs() -> dict[str, datasets.Dataset]:
    return {"a": pairs(7, 1), "b": pairs(4, 2)}


def two_chats() -> dict[str, datasets.Dataset]:
    return {"a": chats(20, 1), "b": chats(12, 2)}


def reference(dtype: torch.dtype = torch.float32) -> Any:
    model, generator = model_of(dtype=dtype), torch.Generator().manual_seed(7)
    for parameter in model.parameters():
        parameter.data += 0.05 * torch.randn(parameter.shape, generator=generator, dtype=dtype)
    return model


def sft_arguments(folder: str | Path, **changes: Any) -> MixingSFTConfig:
    return MixingSFTConfig(**trl_options(folder, **changes))


def sft(folder: str | Path, data: Any, model: Any = "llama", own: Any = None, **changes: Any) -> MixingSFTTrainer:
    """A trainer with `own` options of a mixture and `changes` of the arguments."""
    model = model_of(model) if isinstance(model, str) else model
    args = sft_arguments(folder, **changes)
    return mixing_trainer(
        MixingSFTTrainer, model, args, train_dataset=data, processing_class=tokenizer(), **(own or {})
    )


def trl_options(folder: str | Path, **changes: Any) -> dict[str, Any]:
    own = {"bf16": False, "gradient_checkpointing": False, "lr_scheduler_type": "constant"}
    return plain_options(folder, **{**own, **changes})


def sft_mixture(folder: str | Path, model_name: str, per_device: int, callbacks: Any = (), **changes: Any) -> Any:
    """Makes a run of six steps over an epoch of 37 samples: four of 9 and one of 1."""
    data = {"a": chats(20, 1), "b": completions(11, 2), "c": texts(6, 3)}
    own = {"batch_size": 9, "mixing": "Uniform", "callbacks": list(callbacks)}
    return sft(folder, data, model_name, own, per_device_train_batch_size=per_device, max_steps=6, **changes)


def reward_model() -> LlamaForSequenceClassification:
    config = model_of().config
    config.num_labels = 1
    torch.manual_seed(0)
    return LlamaForSequenceClassification(config)


class MixingDPO(MixingMixin, DPOTrainer):
    pass


class MixingRewards(MixingMixin, RewardTrainer):
    pass


def preferences(folder: str | Path, kind: str, per_device: int, callbacks: Any = ()) -> Any:
    """Makes a run of four steps over an epoch of 11 pairs: two of 5 and one of 1."""
    options = trl_options(folder, per_device_train_batch_size=per_device, max_steps=4)
    common = {"processing_class": tokenizer(), "callbacks": list(callbacks), "batch_size": 5}
    common["train_dataset"] = two_pairs()
    if kind == "dpo":
        return MixingDPO(model_of(), ref_model=model_of(), args=DPOConfig(**options), **common)
    return MixingRewards(reward_model(), args=RewardConfig(**options), **common)
