"""Self-generated replay: the model itself writes, before a run, what it is to keep."""

import gzip
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import datasets
import torch
from torch import nn

from mixer.distributed.collectives import RankSync
from mixer.models.side_state import evaluating, undisturbed
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import local_path
from mixer.utils.ranges import check_count, check_range
from replay.generation.sampling import Sampling, check_generates, ends_of, padded, padding_of, sample

_ROUNDS = 8  # in each of which as many rows are written as are wanted in all
_WORDS = "<words of the user>"
Row = dict[str, str]


def self_generated(
    model: Any,
    tokenizer: Any,
    ranks: RankSync | None = None,
    *,
    num_rows: int = 256,
    prompts: Sequence[str] | str | None = None,
    prompt: str = "{prompt}",
    as_chat: bool | None = None,
    min_tokens: int = 4,
    max_perplexity: float | None = None,
    batch_size: int = 16,
    seed: int = 0,
    **sampling: Any,
) -> datasets.Dataset:
    """Lets a model write rows, to be replayed while it learns something new, where its old data are missing.

    Robins 1995, "Catastrophic forgetting, rehearsal and pseudorehearsal"; for chat models Huang et al. 2024,
    "Self-Synthesized Rehearsal", arXiv:2403.01244. The model answers prompts, continues short texts, or begins by
    itself. In a chat it then writes the user's words too, after what the template has before them (Xu et al. 2024,
    "Magpie", arXiv:2406.08464, section 2). Rows that are too short, come twice, are improbable under the model, or
    answers without an end are left out, and others are written in their place.

    Sampled at temperature 1 and unfiltered, these rows are the model's own distribution: the rise of their mean loss in
    training estimates `KL(p_before || p)` for each token.

    Args:
        model: A causal language model as it is before the run; nothing of it changes.
        tokenizer: Its tokenizer.
        ranks: The ranks of the run, which write a part each; all have the same rows, whatever their number. `None` for
            one process.
        num_rows: Number of rows.
        prompts: Prompts or beginnings of texts, taken in turn; or the path of a file: one per line, or JSON lines
            (`.jsonl`, `.jsonl.gz`). `None` lets the model begin.
        prompt: Template of a prompt over the columns of JSON lines: `"{instruction} {instances[0][input]}"`.
        as_chat: Whether the model answers by its chat template; `None` if there is one.
        min_tokens: Least number of tokens that it writes.
        max_perplexity: Largest perplexity of what it writes, `exp` of the mean loss of a token; `None` for any.
        batch_size: Rows that are sampled together.
        seed: Determines the rows.
        **sampling: See `Sampling`.

    Returns:
        Rows of `prompt` and `completion` for the format `Prompt(as_chat=True)`; of `text`, for `Text`, if not chats.

    Raises:
        ValueError: If a value is wrong, there are no prompts, or filters leave too few rows.
    """
    check_count("num_rows", num_rows, 1, "it is the number of rows that the model writes")
    check_count("min_tokens", min_tokens, 0, "it is the least number of tokens of a row")
    check_count("batch_size", batch_size, 1, "it is the number of rows sampled together")
    if max_perplexity is not None:
        check_range("max_perplexity", max_perplexity, 1.0, math.inf, "20 leaves out what is improbable")
    check_generates(model)
    is_chat = tokenizer.chat_template is not None if as_chat is None else as_chat
    starts = _starts(tokenizer, read_prompts(prompts, prompt), is_chat)
    writer = _Writer(model, tokenizer, starts, Sampling(**sampling), min_tokens, max_perplexity, seed)
    found: dict[str, Row] = {}
    for first in range(0, _ROUNDS * num_rows, num_rows):
        batches = [
            range(at, min(at + batch_size, first + num_rows)) for at in range(first, first + num_rows, batch_size)
        ]
        for row in _of_all_ranks(writer, batches, ranks or RankSync(1)):
            found.setdefault("\n".join(row.values()), row)
        if len(found) >= num_rows:
            return datasets.Dataset.from_list(list(found.values())[:num_rows])
    text = (
        f"must be at most {len(found)} here, as no more of {_ROUNDS * num_rows} rows that the model wrote are new, end"
    )
    way = " and pass the filters. Give more prompts, allow more (max_new_tokens, max_perplexity), or fewer min_tokens."
    raise InvalidValueError.about("num_rows", text + way, found=num_rows)


def _of_all_ranks(writer: "_Writer", batches: Sequence[range], ranks: RankSync) -> list[Row]:
    """Returns the rows of batches in their order; each rank writes some."""
    rank = 0 if ranks.world_size == 1 else torch.distributed.get_rank()
    parts = ranks.gather(ranks.run_on_all(lambda: [writer.rows(own) for own in batches[rank :: ranks.world_size]]))
    places = range(len(batches))
    return [row for at in places for row in parts[at % ranks.world_size][at // ranks.world_size]]


def read_prompts(prompts: Sequence[str] | str | None, template: str) -> list[str] | None:
    """Reads prompts of a list or a file; `None` for none.

    Raises:
        ValueError: If there are none in it, or a line does not fit the template; names the line.
        FileNotFoundError: If there is no such file.
    """
    if prompts is None or not isinstance(prompts, str):
        found = None if prompts is None else [str(own) for own in prompts]
    else:
        path = Path(local_path(prompts))
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
        found = [line for line in content.decode().splitlines() if line.strip()]
        if ".jsonl" in path.suffixes:
            found = [_filled(template, line, number) for number, line in enumerate(found, 1)]
    found = None if found is None else list(dict.fromkeys(own.strip() for own in found if own.strip()))
    if found == []:
        raise InvalidValueError.about("prompts", f"must have a prompt or more, got none in {prompts!r:.100}.")
    return found


def _filled(template: str, line: str, number: int) -> str:
    try:
        return template.format_map(json.loads(line))
    except (ValueError, LookupError, TypeError) as error:
        text = f"of JSON lines must fit prompt={template!r}, but line {number} does not ({error!r})."
        raise InvalidValueError.about("prompts", text) from None


@dataclass(frozen=True)
class _Start:
    """What a row begins with.

    Args:
        text: What the model reads.
        prompt: The prompt of the row; `None` if the model writes it.
        after: What the model reads between a prompt that it has written and its answer.
    """

    text: str
    prompt: str | None = None
    after: str = ""


def _starts(tokenizer: Any, prompts: Sequence[str] | None, is_chat: bool) -> list[_Start]:
    if not is_chat:
        return [_Start(text, "") for text in prompts or [""]]
    if tokenizer.chat_template is None:
        raise InvalidValueError.about("as_chat", "must be false for a tokenizer without a chat template.")

    def rendered(words: str) -> str:
        turn = [{"role": "user", "content": words}]
        return str(tokenizer.apply_chat_template(turn, tokenize=False, add_generation_prompt=True))

    if prompts is not None:
        return [_Start(rendered(words), words) for words in prompts]
    before, _, after = rendered(_WORDS).partition(_WORDS)
    return [_Start(before, None, after)]


class _Writer:
    """Writes rows by number: that of its batch's first row and the seed determine what is sampled."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        starts: Sequence[_Start],
        sampling: Sampling,
        min_tokens: int,
        max_perplexity: float | None,
        seed: int,
    ):
        self._model, self._tokenizer, self._starts, self._sampling = model, tokenizer, starts, sampling
        self._min_tokens, self._max_perplexity, self._seed = min_tokens, max_perplexity, seed
        self._device = next(model.parameters()).device
        self._is_chat = starts[0].prompt != ""

    def rows(self, numbers: range) -> list[Row]:
        """Writes a batch of rows, without those that filters leave out."""
        starts = [self._starts[number % len(self._starts)] for number in numbers]
        texts, questions = [start.text for start in starts], [start.prompt for start in starts]
        if questions[0] is None:
            _, written = self._continued(texts, (self._seed, numbers.start, 1))
            questions = [self._decoded(ids) if self._has_end(ids) else "" for ids in written]
            texts = [f"{start.text}{own}{start.after}" for start, own in zip(starts, questions, strict=True)]
        read, written = self._continued(texts, (self._seed, numbers.start))
        found = list(zip(questions, read, written, strict=True))
        if not self._is_chat:
            return [{"text": self._decoded(own + new)} for _, own, new in found if self._is_kept(own, new)]
        return [
            {"prompt": str(question), "completion": self._decoded(new)}
            for question, own, new in found
            if question and self._has_end(new) and self._is_kept(own, new)
        ]

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self._tokenizer.decode(ids, skip_special_tokens=True)).strip()

    def _has_end(self, ids: Sequence[int]) -> bool:
        return bool(ids) and ids[-1] in ends_of(self._model)

    def _continued(self, texts: Sequence[str], key: Sequence[int]) -> tuple[list[list[int]], list[list[int]]]:
        """Returns the tokens of texts, and those that the model adds to them."""
        begin = (
            self._tokenizer.bos_token_id if self._tokenizer.bos_token_id is not None else self._tokenizer.eos_token_id
        )
        special = {} if not self._is_chat else {"add_special_tokens": False}
        read = [self._tokenizer(text, **special)["input_ids"] if text else [begin] for text in texts]
        ids, mask = padded(read, padding_of(self._model))
        with undisturbed(self._model, self._device):
            new = sample(self._model, ids.to(self._device), mask.to(self._device), self._sampling, key)
        return read, [row[row >= 0].tolist() for row in new.cpu()]

    def _is_kept(self, read: list[int], written: list[int]) -> bool:
        if len(written) < max(self._min_tokens, 1):
            return False
        return self._max_perplexity is None or self._perplexity(read, written) <= self._max_perplexity

    def _perplexity(self, read: list[int], written: list[int]) -> float:
        with evaluating(self._model):
            logits = self._model(input_ids=torch.tensor([read + written], device=self._device)).logits[0]
        targets = torch.tensor(written, device=self._device)
        return float(nn.functional.cross_entropy(logits[len(read) - 1 : -1].float(), targets).exp())
