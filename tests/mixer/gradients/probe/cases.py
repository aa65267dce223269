"""Small models of every kind, with batches of rows of different length from several streams."""

import itertools
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

from tests.helpers import build_model
from tests.mixer.gradients.probe.reference import Batch, Case

VOCABULARY, LENGTH = 40, 7
IDS = [2, 0, 0, 2, 0, 2, 2, 0, 0]  # in any order, and without stream 1
_SIZES = {"vocab_size": VOCABULARY, "hidden_size": 16, "intermediate_size": 24, "num_attention_heads": 2}


def tokens(num_rows: int, seed: int = 0) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(2, VOCABULARY, (num_rows, LENGTH), generator=generator)
    lengths = torch.randint(3, LENGTH + 1, (num_rows,), generator=generator)
    mask = (torch.arange(LENGTH) < lengths[:, None]).long()
    labels = torch.where(mask.bool(), ids, -100)
    labels[1] = -100  # a row without items
    return {"input_ids": ids * mask, "attention_mask": mask, "labels": labels}


def token_losses(logits: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.cross_entropy(logits.mT, labels, ignore_index=-100, reduction="none").sum(1)


def _lm_losses(model: nn.Module, batch: Batch, shift: int = 1) -> Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return token_losses(logits[:, : LENGTH - shift], batch["labels"][:, shift:])


_masked_losses = partial(_lm_losses, shift=0)


def _seq2seq_losses(model: nn.Module, batch: Batch) -> Tensor:
    inputs = {"input_ids": batch["input_ids"], "attention_mask": batch["attention_mask"]}
    logits = model(**inputs, decoder_input_ids=batch["input_ids"].flip(1)[:, :5]).logits
    return token_losses(logits, batch["labels"][:, :5])


def _class_losses(model: nn.Module, batch: Batch) -> Tensor:
    logits = model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits
    return nn.functional.cross_entropy(logits, batch["input_ids"][:, 0] % 3, reduction="none")


def language_case(model: nn.Module, losses: Callable[..., Tensor] = _lm_losses) -> Case:
    batch = tokens(len(IDS))
    counted = {_lm_losses: slice(1, None), _masked_losses: slice(None), _seq2seq_losses: slice(5), _class_losses: None}
    where = counted[losses]
    items = torch.ones(len(IDS), dtype=torch.int64) if where is None else (batch["labels"][:, where] != -100).sum(1)
    return Case(model.train(), batch, losses, items, IDS)


def _tied() -> Any:
    model: Any = build_model("llama")
    model.lm_head.weight = model.model.embed_tokens.weight
    return model


def _gemma() -> nn.Module:
    sizes = {**_SIZES, "num_hidden_layers": 2, "num_key_value_heads": 1, "head_dim": 8, "sliding_window": 4}
    return hf.Gemma3ForCausalLM(hf.Gemma3TextConfig(**sizes, pad_token_id=0))


def opt() -> nn.Module:
    """Its embedding of positions is given masks."""
    sizes = {"hidden_size": 16, "ffn_dim": 24, "num_hidden_layers": 1, "num_attention_heads": 2, "dropout": 0.0}
    config = hf.OPTConfig(vocab_size=VOCABULARY, max_position_embeddings=16, word_embed_proj_dim=16, **sizes)
    return hf.OPTForCausalLM(config)


def _lora(model: nn.Module, *modules: str) -> nn.Module:
    from peft import LoraConfig, get_peft_model

    adapted = get_peft_model(model, LoraConfig(r=3, target_modules=list(modules), lora_dropout=0.0))
    for name, parameter in adapted.named_parameters():
        if "lora_B" in name:  # zeros at first, with which A has no gradient
            nn.init.normal_(parameter, std=0.1)
    return adapted


class Mlp(nn.Module):
    """Layers with biases on vectors, which some rows of a batch do not need."""

    def __init__(self, *sizes: int, norm: Callable[[int], nn.Module] = nn.LayerNorm):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.norms = nn.ModuleList(norm(size) for size in sizes[1:-1])

    def forward(self, inputs: Tensor) -> Tensor:
        for layer, norm in zip(self.layers, self.norms, strict=False):
            inputs = torch.tanh(norm(layer(inputs)))
        return self.layers[-1](inputs)


def vector_losses(model: nn.Module, batch: Batch) -> Tensor:
    return (model(batch["inputs"]) - batch["targets"]).square().sum(-1) * batch["items"]


def vector_case(
    model: nn.Module, stream_ids: list[int], num_in: int, num_out: int, seed: int = 0, num_streams: int = 3
) -> Case:
    generator = torch.Generator().manual_seed(seed)
    num_rows = len(stream_ids)
    items = torch.randint(0, 4, (num_rows,), generator=generator)
    items[0] += 1
    batch = {
        "inputs": torch.randn(num_rows, num_in, generator=generator),
        "targets": torch.randn(num_rows, num_out, generator=generator),
        "items": items.float(),
    }
    return Case(model, batch, vector_losses, items, stream_ids, num_streams)


def _t5() -> nn.Module:
    sizes = {"d_model": 16, "d_kv": 8, "d_ff": 24, "num_layers": 2, "num_heads": 2, "dropout_rate": 0.0}
    return hf.T5ForConditionalGeneration(hf.T5Config(vocab_size=VOCABULARY, decoder_start_token_id=0, **sizes))


def _albert() -> nn.Module:
    layers = {"embedding_size": 8, "num_hidden_layers": 3, "num_hidden_groups": 1}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return hf.AlbertForMaskedLM(hf.AlbertConfig(**_SIZES, **dropout, **layers))


_BUILD: dict[str, Callable[[], Case]] = {
    "llama": lambda: language_case(build_model("llama")),
    "llama-tied": lambda: language_case(_tied()),
    "gemma": lambda: language_case(_gemma()),
    "gpt2": lambda: language_case(build_model("gpt2")),
    "bert-classifier": lambda: language_case(build_model("bert-classifier"), _class_losses),
    "mlp": lambda: vector_case(Mlp(5, 8, 6, 4), IDS, 5, 4),
    "rms-norm": lambda: vector_case(Mlp(5, 8, 6, 4, norm=nn.RMSNorm), IDS, 5, 4),
    "t5": lambda: language_case(_t5(), _seq2seq_losses),
    "albert": lambda: language_case(_albert(), _masked_losses),
    "lora-llama": lambda: language_case(_lora(build_model("llama"), "q_proj", "down_proj")),
    "lora-gpt2": lambda: language_case(_lora(build_model("gpt2"), "c_attn", "c_proj")),
}
CASES = tuple(_BUILD)


def build(name: str, dtype: torch.dtype = torch.float32) -> Case:
    torch.manual_seed(0)
    case = _BUILD[name]()
    case.model.to(dtype)
    case.batch = {key: value.to(dtype) if value.is_floating_point() else value for key, value in case.batch.items()}
    return case
