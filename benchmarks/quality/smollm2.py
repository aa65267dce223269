"""Chats and texts for SmolLM2-135M-Instruct, of which the upper four of 30 layers and the last norm are trained.

The lower layers and the output, which is the embedding, are frozen. What the lower layers give is computed once, in
`bfloat16` where the processor has it, and kept beside the weights in half precision. A chat is rendered by the
tokenizer's own template, and its labels are the answer; those of more than 144 tokens are left out. A text is cut to 96
tokens.

Rows are padded on the left: answers stand side by side, and the output is computed only where a row has a label.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from transformers import AutoTokenizer, LlamaForCausalLM, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast

from benchmarks.quality.data import PARTS, Splits, part_of
from benchmarks.quality.instructions import Pair, pairs
from mixer.models.labels import IGNORED
from mixer.utils.arrays import Int64Array
from tasks.sources import smollm2
from tasks.sources.arrays import InMemory, Sample

NUM_UPPER = 4
_LENGTH, _TEXT_LENGTH = 144, 96  # tokens of a chat at most, and of a text
_COUNTS = {"train": 240, "validation": 64, "test": 48}  # rows at most: a run trains on 480
_ROWS_AT_ONCE = 16


class Row(NamedTuple):
    """A row's tokens, and how many of them are its prompt, which has no labels."""

    ids: tuple[int, ...]
    num_prompt: int


class Rows(InMemory):
    """Rows with what the lower layers make of them, which is in half precision here and in single where it is read.

    Args:
        columns: `inputs_embeds`, `input_ids`, `attention_mask` and `labels`, padded on the left.
    """

    num_rows_at_once = _ROWS_AT_ONCE  # of an evaluation: logits are large

    def read_columns(self, indices: Int64Array) -> Sample:
        """Reads several rows; see `InMemory.read_columns`."""
        columns = super().read_columns(indices)
        return columns | {"inputs_embeds": columns["inputs_embeds"].float()}


def rows(
    name: str,
    folder: str | None = None,
    num_samples: int | None = None,
    number: int = 0,
    of: int = 1,
    wrong: float = 0.0,
) -> Splits:
    """Reads a source, as what the lower layers make of its rows.

    Args:
        name: One of `benchmarks.quality.instructions.SOURCES`.
        folder: The data's folder, for what is read from files.
        num_samples: Rows to train on, chosen at random; `None` for 240, or all if there are fewer.
        number: Which slice of these, from 0.
        of: Number of slices.
        wrong: Share of the rows to train on that get the answer to another question.

    Returns:
        The parts.

    Raises:
        FileNotFoundError: If a file is missing.
        ModuleNotFoundError: If the weights are not installed.
    """
    found = {}
    for part in PARTS:
        chosen = chosen_pairs(name, folder, part)
        whole = of_pairs(_spoilt(chosen, wrong) if part == "train" else chosen)
        taken = np.arange(len(whole))[:num_samples][number::of] if part == "train" else np.arange(len(whole))
        found[part] = Rows(widened(InMemory.read_columns(whole, taken)))
    return found


def widened(columns: Sample) -> Sample:
    """Pads rows to the greatest length: those of several sources make a batch.

    Args:
        columns: Columns of rows, padded on the left.

    Returns:
        The columns, longer.
    """
    missing = _LENGTH - columns["labels"].shape[1]
    hidden = nn.functional.pad(columns.pop("inputs_embeds"), (0, 0, missing, 0))
    padding = {"input_ids": 0, "attention_mask": 0, "labels": IGNORED}
    padded = {name: nn.functional.pad(columns[name], (missing, 0), value=value) for name, value in padding.items()}
    return {"inputs_embeds": hidden, **padded}


@cache
def chosen_pairs(name: str, folder: str | None, part: str) -> tuple[Pair, ...]:
    """Chooses pairs of a part of a source, those whose rows are short enough.

    Args:
        name: The source.
        folder: The data's folder.
        part: One of `PARTS`.

    Returns:
        The pairs.
    """
    whole = pairs(name, folder)
    found: list[Pair] = []
    for place in np.random.default_rng(0).permutation(len(whole)):
        question, answer = whole[place]
        fits = not question or len(chat_row(question, answer).ids) <= _LENGTH
        if part_of(question or answer) == part and fits:
            found.append((question, answer))
        if len(found) == _COUNTS[part]:
            break
    return tuple(found)


def _spoilt(chosen: Sequence[Pair], wrong: float) -> Sequence[Pair]:
    """Gives a share of the questions the answer to the next of them."""
    places = np.flatnonzero(np.random.default_rng(1).random(len(chosen)) < wrong)
    answer_of = dict(zip(places.tolist(), np.roll(places, 1).tolist(), strict=True))
    found = [(question, chosen[answer_of.get(place, place)][1]) for place, (question, _) in enumerate(chosen)]
    return [pair for pair in found if not pair[0] or len(chat_row(*pair).ids) <= _LENGTH]


@cache
def tokenizer() -> Any:
    """Loads the tokenizer."""
    return AutoTokenizer.from_pretrained(smollm2())


@cache
def chat_row(question: str, answer: str) -> Row:
    """Makes the tokens of a chat, or of a text where there is no question."""
    if not question:
        return Row(tuple(tokenizer()(answer)["input_ids"][:_TEXT_LENGTH]), 0)
    asked = [{"role": "user", "content": question}]
    whole = [*asked, {"role": "assistant", "content": answer}]
    prompt = tokenizer().apply_chat_template(asked, tokenize=False, add_generation_prompt=True)
    text = tokenizer().apply_chat_template(whole, tokenize=False).rstrip("\n")
    before, after = (tokenizer()(own)["input_ids"] for own in (prompt, text.removeprefix(prompt)))
    return Row((*before, *after), len(before))


def of_pairs(chosen: Sequence[Pair]) -> Rows:
    """Gives what the lower layers of SmolLM2 make of pairs; see `encoded`."""
    return encoded([chat_row(*pair) for pair in chosen], smollm2(), NUM_UPPER)


def encoded(chosen: Sequence[Row], folder: Path, num_upper: int) -> Rows:
    """Gives what the lower layers of a model make of rows: computed once, and kept beside its weights.

    Args:
        chosen: The rows.
        folder: The model.
        num_upper: Layers that are not computed.

    Returns:
        The rows, in this order.
    """
    columns = padded(chosen)
    digest = hashlib.sha256(repr(([*chosen], num_upper)).encode()).hexdigest()[:16]
    path = folder / f"lower-{digest}.safetensors"
    if not path.is_file():
        part = path.with_suffix(f".{os.getpid()}.part")
        save_file({"inputs_embeds": _lower_outputs(columns, folder, num_upper)}, part)
        part.replace(path)
    return Rows({**load_file(path), **columns})


def padded(chosen: Sequence[Row]) -> dict[str, Tensor]:
    """Pads rows on the left.

    Args:
        chosen: The rows.

    Returns:
        `input_ids`, `attention_mask` and `labels`, `[num_rows, length]`; those of padding are 0, 0 and -100.
    """
    length = max(len(row.ids) for row in chosen)
    ids, labels = (torch.full((len(chosen), length), value) for value in (0, IGNORED))
    mask = torch.zeros_like(ids)
    for place, row in enumerate(chosen):
        ids[place, length - len(row.ids) :] = torch.tensor(row.ids)
        mask[place, length - len(row.ids) :] = 1
        first = max(row.num_prompt, 1)  # nothing predicts a text's first token
        labels[place, length - len(row.ids) + first :] = torch.tensor(row.ids[first:])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def _lower_outputs(columns: Mapping[str, Tensor], folder: Path, num_upper: int) -> Tensor:
    """Computes `[num_rows, length, width]` in half precision, rows of like length together."""
    model = _loaded(folder).model
    model.layers, model.norm = model.layers[:-num_upper], nn.Identity()
    ids, mask = columns["input_ids"], columns["attention_mask"]
    found = torch.zeros((*ids.shape, model.config.hidden_size), dtype=torch.half)
    is_fast = bool(torch.cpu.get_capabilities().get("avx512_bf16"))  # elsewhere a multiple of the time
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16, enabled=is_fast):
        for chunk in mask.sum(dim=1).argsort().split(_ROWS_AT_ONCE):
            length = int(mask[chunk].sum(dim=1).max())
            own, is_there = ids[chunk, -length:], mask[chunk, -length:]
            hidden = model(input_ids=own, attention_mask=is_there, use_cache=False).last_hidden_state
            found[chunk, -length:] = (hidden * is_there[..., None]).half()
    return found


def _loaded(folder: Path) -> Any:
    return LlamaForCausalLM.from_pretrained(folder).eval()


class UpperLayers(LlamaForCausalLM):
    """The upper layers of a Llama, its last norm and its frozen output."""

    def forward(  # type: ignore[override]
        self,
        inputs_embeds: Tensor,
        attention_mask: Tensor,
        labels: Tensor | None = None,
        input_ids: Tensor | None = None,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Predicts the token after each.

        Args:
            inputs_embeds: `[num_rows, length, width]`: what the lower layers gave, padded on the left.
            attention_mask: `[num_rows, length]`.
            labels: `[num_rows, length]`, or `None`; they are shifted here.
            input_ids: The tokens, which are not needed.
            **kwargs: For the layers and the loss.

        Returns:
            The loss, and the logits where a row has a label to predict; everywhere without labels.
        """
        length = int(attention_mask.sum(dim=1).max())  # padding that no row needs
        hidden, mask = inputs_embeds[:, -length:], attention_mask[:, -length:]
        if labels is not None:
            targets = nn.functional.pad(labels[:, -length:], (0, 1), value=IGNORED)[:, 1:]
            places = targets.ne(IGNORED).any(dim=0).nonzero().squeeze(-1)
            kwargs |= {"labels": targets, "shift_labels": targets[:, places], "logits_to_keep": places}
        found: CausalLMOutputWithPast = super().forward(inputs_embeds=hidden, attention_mask=mask, **kwargs)
        return found


def upper_layers(folder: Path, num_upper: int) -> UpperLayers:
    """Loads the upper layers of a model.

    Args:
        folder: The model.
        num_upper: How many.

    Returns:
        The layers.
    """
    whole = _loaded(folder)
    config = whole.config
    first, config.num_hidden_layers, config.use_cache = config.num_hidden_layers - num_upper, num_upper, False
    whole.model.layers = whole.model.layers[first:]
    model = UpperLayers(config)
    model.load_state_dict(whole.state_dict())
    model.get_input_embeddings().requires_grad_(False)
    return model


def new_model() -> PreTrainedModel:
    """Loads the upper layers of SmolLM2."""
    return upper_layers(smollm2(), NUM_UPPER)
