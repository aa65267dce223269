"""How many answers of a trained SmolLM2 are exactly right: questions of the test part, answered word by word."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from benchmarks.quality.data import Splits
from benchmarks.quality.instructions import EXACT
from benchmarks.quality.scenarios import Scenario
from benchmarks.quality.smollm2 import NUM_UPPER, Row, UpperLayers, padded, tokenizer
from mixer.models.labels import IGNORED
from tasks.sources import smollm2

_NUM_QUESTIONS = 16
_MOST_TOKENS = 96  # of an answer


def exact_answers(scenario: Scenario, model: Any, parts: Mapping[str, Splits]) -> dict[str, dict[str, float]]:
    """Counts right answers to questions of the targets that have an exact check.

    Args:
        scenario: The scenario.
        model: The trained model.
        parts: What `Scenario.read` gave.

    Returns:
        `exact`: the share of right answers by target, of 16 each; nothing for other models, or without such a target.
    """
    if not isinstance(model, UpperLayers):
        return {}
    content = scenario.content
    sets = {**content["streams"], **content.get("evaluation", {})}
    sources = {target: sets[target]["arguments"]["name"] for target in scenario.objective.importance}
    checked = {target: name for target, name in sources.items() if name in EXACT}
    whole = whole_model(model) if checked else None
    shares = {target: _share(whole, name, parts[target]["test"]) for target, name in checked.items()}
    return {"exact": shares} if shares else {}


def whole_model(upper: UpperLayers) -> LlamaForCausalLM:
    """Puts trained upper layers back on the lower ones.

    Args:
        upper: The upper layers of SmolLM2.

    Returns:
        The whole model.
    """
    whole = LlamaForCausalLM.from_pretrained(smollm2()).eval()
    for own, trained in zip(whole.model.layers[-NUM_UPPER:], upper.model.layers, strict=True):
        own.load_state_dict(trained.state_dict())
    whole.model.norm.load_state_dict(upper.model.norm.state_dict())
    return whole


def _share(model: Any, name: str, test: Any) -> float:
    read, right = EXACT[name], list[bool]()
    rows = [test[place] for place in range(min(_NUM_QUESTIONS, len(test)))]
    answers = [tokenizer().decode(row["labels"][row["labels"] != IGNORED], skip_special_tokens=True) for row in rows]
    for answer, given in zip(answers, _given(model, rows), strict=True):
        right.append(read(answer) == read(given))
    return sum(right) / len(right)


def _given(model: Any, rows: list[Mapping[str, Tensor]]) -> list[str]:
    """Answers the questions of rows, each token the likeliest."""
    asked = [row["input_ids"][row["attention_mask"].bool() & (row["labels"] == IGNORED)].tolist() for row in rows]
    return given(model, asked)


def given(model: Any, prompts: Sequence[Sequence[int]], max_new_tokens: int = _MOST_TOKENS) -> list[str]:
    """Answers prompts, each token the likeliest.

    Args:
        model: A language model.
        prompts: Their tokens.
        max_new_tokens: Most tokens of an answer.

    Returns:
        The answers.
    """
    inputs = padded([Row(tuple(prompt), len(prompt)) for prompt in prompts])
    ids, mask = inputs["input_ids"], inputs["attention_mask"]
    with torch.no_grad():
        options = {"max_new_tokens": max_new_tokens, "do_sample": False, "use_cache": True}
        found = model.generate(input_ids=ids, attention_mask=mask, **options)
    return [tokenizer().decode(own, skip_special_tokens=True) for own in found[:, ids.shape[1] :]]
