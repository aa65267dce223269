"""Small models, data sets and callbacks that several tests share."""

import copy
import functools
import os
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Executor, Future
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from accelerate.utils import imports, memory, other
from rich.console import Console
from torch import nn
from torch.utils.data import Dataset, IterableDataset
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    BertForTokenClassification,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    TrainerCallback,
)

from mixer import MixingConfig, MixingOptions
from mixer.run.config import OF_TRAINER
from mixer.utils import files
from mixer.utils.user_code import library_of

VOCABULARY = 64
DOCS = Path(__file__).parents[1] / "docs"


def run_page(page: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """Runs all Python of a page of the documentation as it stands, in a folder; returns its names."""
    monkeypatch.chdir(folder)
    names: dict[str, Any] = {"__name__": page}
    code = "\n".join(re.findall(r"```python\n(.+?)```", (DOCS / f"{page}.md").read_text(), re.DOTALL))
    exec(compile(code, f"{page}.md", "exec"), names)  # noqa: S102
    return names


class Tokens(Dataset[dict[str, torch.Tensor]]):
    """Rows of tokens of different length, padded, with labels by `label(ids, mask, generator)`."""

    def __init__(self, num_samples: int, seed: int, kind: str = "causal-lm", length: int = 12):
        generator = torch.Generator().manual_seed(seed)
        self.rows = []
        for _ in range(num_samples):
            size = int(torch.randint(3, length + 1, (1,), generator=generator))
            ids = torch.randint(1, VOCABULARY, (length,), generator=generator)
            mask = (torch.arange(length) < size).long()
            row = {"input_ids": ids * mask, "attention_mask": mask}
            row["labels"] = _LABELS[kind](ids, mask, generator)
            self.rows.append(row)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return self.rows[index]


class InOrder(IterableDataset[Any]):
    """Rows that can only be read one after the other."""

    def __init__(self, rows: Any):
        self.rows = rows

    def __iter__(self) -> Iterator[Any]:
        return (self.rows[index] for index in range(len(self.rows)))


def _class(ids: torch.Tensor, mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 3, (), generator=generator)


def _token_labels(ids: torch.Tensor, mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.where(mask.bool(), ids % 3, -100)


def _next_token(ids: torch.Tensor, mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.where(mask.bool(), ids, -100)


def _number(ids: torch.Tensor, mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randn((), generator=generator)


def _several_classes(ids: torch.Tensor, mask: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    return torch.randint(0, 2, (3,), generator=generator).float()


_LABELS: dict[str, Callable[..., torch.Tensor]] = {
    "causal-lm": _next_token,
    "masked-lm": _next_token,
    "sequence-classification": _class,
    "token-classification": _token_labels,
    "regression": _number,
    "multi-label": _several_classes,
}


def _llama_config(**changes: Any) -> LlamaConfig:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    return LlamaConfig(vocab_size=VOCABULARY, num_key_value_heads=2, pad_token_id=0, **{**sizes, **changes})


def _bert_config(**changes: Any) -> BertConfig:
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    dropout = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    return BertConfig(vocab_size=VOCABULARY, **{**sizes, **dropout, **changes})


def build_model(name: str) -> nn.Module:
    torch.manual_seed(0)
    if name == "llama":
        return LlamaForCausalLM(_llama_config())
    if name == "gpt2":
        config = GPT2Config(vocab_size=VOCABULARY, n_embd=16, n_layer=1, n_head=2, n_positions=32)
        config.resid_pdrop = config.embd_pdrop = config.attn_pdrop = 0.0
        return GPT2LMHeadModel(config)
    if name == "llama-classifier":
        return LlamaForSequenceClassification(_llama_config(num_labels=3))
    if name == "bert-classifier":
        return BertForSequenceClassification(_bert_config(num_labels=3))
    if name == "bert-regression":
        return BertForSequenceClassification(_bert_config(num_labels=1))
    if name == "bert-multi-label":
        return BertForSequenceClassification(_bert_config(num_labels=3, problem_type="multi_label_classification"))
    if name == "bert-tokens":
        return BertForTokenClassification(_bert_config(num_labels=3))
    assert name == "bert-masked-lm"
    return BertForMaskedLM(_bert_config())


MODEL_DATA = {
    "llama": "causal-lm",
    "gpt2": "causal-lm",
    "llama-classifier": "sequence-classification",
    "bert-classifier": "sequence-classification",
    "bert-regression": "regression",
    "bert-multi-label": "multi-label",
    "bert-tokens": "token-classification",
    "bert-masked-lm": "masked-lm",
}


def three_streams(kind: str = "causal-lm") -> dict[str, Tokens]:
    return {"a": Tokens(20, 1, kind), "b": Tokens(11, 2, kind), "c": Tokens(6, 3, kind)}


def plain_options(folder: str | Path, **changes: Any) -> dict[str, Any]:
    """Options of a short run that says nothing and whose steps can be computed by hand."""
    defaults: dict[str, Any] = {
        "per_device_train_batch_size": 8,
        "max_steps": 3,
        "optim": "sgd",
        "learning_rate": 0.1,
        "max_grad_norm": 0.0,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
    }
    return {"output_dir": str(folder), **defaults, **changes}


def arguments(folder: str | Path, **changes: Any) -> MixingConfig:
    return MixingConfig(**plain_options(folder, **changes))


_OF_CONFIG = {option.name for option in fields(MixingOptions)} - {*OF_TRAINER}


def mixing_trainer(kind: Any, model: Any = None, args: Any = None, *more: Any, **options: Any) -> Any:
    """A trainer whose training arguments get those of its options that belong there."""
    own = {name: options.pop(name) for name in _OF_CONFIG & options.keys()}
    if own:
        assert isinstance(args, MixingOptions)
        args = copy.copy(args)
        vars(args).update(own)
    return kind(model, args, *more, **options)


class On(TrainerCallback):
    """Calls functions at events: with the state, and with what else a callback is given by keyword."""

    def __init__(self, **events: Callable[..., Any]):
        for event, act in events.items():
            setattr(self, f"on_{event}", functools.partial(self._call, act))

    def _call(self, act: Callable[..., Any], args: Any, state: Any, control: Any, **given: Any) -> None:
        act(state, control=control, **given)


class GradientRecorder(TrainerCallback):
    """Keeps the gradients of every step, flattened into one vector."""

    def __init__(self) -> None:
        self.gradients: list[torch.Tensor] = []

    def on_pre_optimizer_step(
        self, args: Any, state: Any, control: Any, model: nn.Module = None, **kwargs: Any
    ) -> None:
        parts = [p.grad.flatten() if p.grad is not None else torch.zeros(p.numel()) for p in model.parameters()]
        self.gradients.append(torch.cat(parts).detach().clone())


def shown(*parts: Any, width: int = 120, height: int = 40) -> str:
    """What a terminal of so many columns and rows shows of tables and panels."""
    console = Console(width=width, height=height, no_color=True)
    with console.capture() as captured:
        console.print(*parts)
    return captured.get()


def weights_of(model: nn.Module) -> torch.Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


# No state: what a method has of the run, and what a policy's warning goes by.
_NOT_SAVED = frozenset({"_run", "run", "task", "_passes", "_buffer", "_attached_to", "_dominant"})


def layouts(value: Any) -> Any:
    """What the rounding of results may depend on beside the numbers, of all that is in a value, as plain data.

    That is the type of each number, tensor and array, with strides, and of tensors how their memory is aligned.
    """
    if isinstance(value, torch.Tensor):
        return f"{value.dtype} {[*value.shape]} by {value.stride()} at {value.data_ptr() % 64}"
    if isinstance(value, np.ndarray):
        return f"{value.dtype} {[*value.shape]} by {value.strides if value.size else ()}"
    if isinstance(value, nn.Module):
        return layouts(value.state_dict())
    if isinstance(value, Mapping):
        return {str(name): layouts(part) for name, part in value.items() if name not in _NOT_SAVED}
    if isinstance(value, list | tuple):
        return [type(value).__name__, *map(layouts, value)]
    is_ours = library_of(type(value)) in ("mixer", "replay", "tasks")
    return layouts(vars(value)) if is_ours and hasattr(value, "__dict__") else type(value).__name__


class InPlace(Executor):
    """Does work where it is submitted."""

    def __init__(self, most: int):
        self.most = most

    def submit(self, work: Callable[..., Any], /, *args: Any) -> Future[Any]:
        done: Future[Any] = Future()
        try:
            done.set_result(work(*args))
        except Exception as error:  # as in a thread: whoever asks for the result is told
            done.set_exception(error)
        return done


def quicken() -> None:
    """Leaves out what takes longer than a short run, in each.

    Accelerate collects all garbage, looks on the disk, several times a step, which packages are installed, and imports
    deepspeed, and with it mlflow, to see that a model is none of its engines: there is one only where it was imported.
    Torch keeps a trace of each seed, for the first use of a device that is not there. Files are synced by
    threads, which have nothing to wait for in tests.
    """
    memory.gc = SimpleNamespace(collect=lambda: 0)
    if not hasattr(imports._is_package_available, "cache_info"):
        imports._is_package_available = functools.cache(imports._is_package_available)
    other.is_deepspeed_available = lambda: "deepspeed" in sys.modules
    for device in (torch.cuda, torch.xpu, torch.mtia):
        if not device.is_available():
            device.manual_seed_all = lambda seed: None
    files.ThreadPoolExecutor = InPlace


def end_ranks() -> None:
    """Ends the processes of all ranks together, without torch's own way out, which aborts one of them now and then."""
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
