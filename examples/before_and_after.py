"""Answers of SmolLM2 before and after it was trained by recipes/smollm2.yaml: one of each source, and scores.

`python examples/before_and_after.py runs/smollm2/uniform [--num_prompts 16]`
"""

import argparse
from collections.abc import Sequence
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM, AutoTokenizer

from tasks import chats
from tasks.generation import TextScore, exact_match, rouge_l, token_f1
from tasks.sources import smollm2

SOURCES: dict[str, tuple[Any, TextScore]] = {
    "docstrings": (chats.docstrings, rouge_l),
    "examples": (chats.examples, exact_match),
    "characters": (chats.characters, token_f1),
    "error_codes": (chats.error_codes, token_f1),
}


def answers(model: Any, tokenizer: Any, prompts: Sequence[str], max_new_tokens: int = 40) -> list[str]:
    """Lets a model answer, greedily."""
    turns = [[{"role": "user", "content": prompt}] for prompt in prompts]
    options = {"add_generation_prompt": True, "return_dict": True, "return_tensors": "pt", "padding": True}
    batch = tokenizer.apply_chat_template(turns, **options)
    with torch.inference_mode():
        tokens = model.generate(**batch, max_new_tokens=max_new_tokens, do_sample=False)
    return [text.strip() for text in tokenizer.batch_decode(tokens[:, batch["input_ids"].shape[1] :], True)]


def main() -> None:
    """Prints a table of scores, and an answer for each source."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="folder of the run")
    parser.add_argument("--num_prompts", type=int, default=16, help="prompts of each source; default: 16")
    own = parser.parse_args()
    tokenizer = AutoTokenizer.from_pretrained(smollm2(), padding_side="left")
    models = [AutoModelForCausalLM.from_pretrained(path).eval() for path in (smollm2(), own.run)]
    scores, shown = Table(title=f"{own.num_prompts} prompts that were not trained on"), Console(width=120, markup=False)
    for column in ("source", "score", "before", "after"):
        scores.add_column(column)
    for name, (source, score) in SOURCES.items():
        rows = [row["messages"] for row in source(1, own.num_prompts)["validation"]]
        prompts, expected = ([turns[place]["content"] for turns in rows] for place in (0, 1))
        before, after = (answers(model, tokenizer, prompts) for model in models)
        values = [score(predictions=texts, references=expected) for texts in (before, after)]
        scores.add_row(name, score.__name__, *(f"{value:.2f}" for value in values))
        example = Table(title=name, show_header=False, width=120)
        for label, text in (
            ("prompt", prompts[0]),
            ("expected", expected[0]),
            ("before", before[0]),
            ("after", after[0]),
        ):
            example.add_row(label, text)
        shown.print(example)
    shown.print(scores)


if __name__ == "__main__":
    main()
