"""Answers of a model before and after a run on chats: scores, and an answer of each source, to rows that were held out.

`python examples/before_and_after.py runs/smollm2/uniform [--num_prompts 16] [--run_code]`; the run is one of
recipes/smollm2.yaml or recipes/smollm2_instruct.yaml, or of your own recipe.
"""

import argparse
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jsonargparse import ArgumentParser
from rich.console import Console
from rich.table import Table
from transformers import AutoModelForCausalLM

from mixer.tools.recipe.recipe import Recipe
from tasks.generation import TEXT_SCORES

# Streams whose answers are checked in another way than by ROUGE-L.
SCORES = {
    **dict.fromkeys(("examples", "intents", "reviews"), "exact_match"),
    **dict.fromkeys(("characters", "error_codes", "reading"), "token_f1"),
    "maths": "last_number_match",
    "tools": "json_lines_match",
    "code": "edit_similarity",
}
_DONE = "all assertions hold"


class Asked(NamedTuple):
    """A prompt and the expected answer, as texts and as tokens."""

    prompt: str
    expected: str
    prompt_ids: list[int]
    expected_ids: list[int]


def read_recipe(path: Path) -> Recipe:
    """Reads a recipe's file."""
    parser = ArgumentParser()
    parser.add_class_arguments(Recipe)
    return Recipe(**vars(parser.instantiate(parser.parse_path(path))))


def asked_in(samples: Sequence[Any], tokenizer: Any, num_prompts: int) -> list[Asked]:
    """Reads prompts and answers off samples; those whose answer `max_length` cuts off are left out."""
    found = []
    for sample in samples:
        learned = [place for place, label in enumerate(sample["labels"]) if label != -100]
        prompt, expected = sample["input_ids"][: learned[0]], [sample["labels"][place] for place in learned]
        if tokenizer.eos_token_id in expected:
            texts = (tokenizer.decode(ids, skip_special_tokens=True).strip() for ids in (prompt, expected))
            found.append(Asked(*texts, prompt, expected))
    return found[:num_prompts]


def answers(model: Any, tokenizer: Any, asked: Sequence[Asked]) -> list[str]:
    """Lets a model answer, greedily, in as many tokens as the longest expected answer has."""
    ids = {"input_ids": [own.prompt_ids for own in asked]}
    batch = tokenizer.pad(ids, padding_side="left", return_tensors="pt")
    longest = max(len(own.expected_ids) for own in asked)
    with torch.inference_mode():
        tokens = model.generate(**batch, max_new_tokens=longest, do_sample=False, pad_token_id=tokenizer.pad_token_id)
    return [text.strip() for text in tokenizer.batch_decode(tokens[:, batch["input_ids"].shape[1] :], True)]


def passes_tests(predictions: Sequence[str], asked: Sequence[Asked]) -> float:
    """Returns the share of programs that pass the assertions in their prompt; it runs what the model wrote."""
    return sum(map(_passes, predictions, asked)) / len(asked)


def _passes(program: str, asked: Asked) -> bool:
    tests = [line for line in asked.prompt.splitlines() if line.startswith("assert ")]
    lines = [*(line for line in program.splitlines() if not line.startswith("```")), *tests, f"print({_DONE!r})"]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-I", "-c", "\n".join(lines)]
        try:
            done = subprocess.run(command, cwd=folder, env={}, capture_output=True, timeout=5, check=False)  # noqa: S603
        except subprocess.TimeoutExpired:
            return False
    return bool(tests) and done.stdout.decode(errors="replace").endswith(f"{_DONE}\n")  # not what ended before


def scored(name: str, asked: Sequence[Asked], written: Sequence[Sequence[str]], runs_code: bool) -> list[str]:
    """Returns the name of a source's score, and the scores of the answers before and after."""
    if name == "code" and runs_code:
        score, values = "passes its tests", [passes_tests(texts, asked) for texts in written]
    else:
        score, expected = SCORES.get(name, "rouge_l"), [own.expected for own in asked]
        values = [TEXT_SCORES[score](predictions=texts, references=expected) for texts in written]
    return [score, *(f"{value:.2f}" for value in values)]


def example_of(name: str, asked: Asked, texts: Sequence[str]) -> Table:
    """Returns a prompt with the expected answer and those before and after."""
    example = Table(title=name, show_header=False, width=120)
    shown = (asked.prompt, asked.expected, *texts)
    for label, part in zip(("prompt", "expected", "before", "after"), shown, strict=True):
        example.add_row(label, part)
    return example


def main() -> None:
    """Prints an answer for each source, and a table of scores."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="folder of the run")
    parser.add_argument("--num_prompts", type=int, default=16, help="most prompts of each source; default: 16")
    text = "runs the programs that the model writes for the source code, for 5 seconds at most: in a container only"
    parser.add_argument("--run_code", action="store_true", help=text)
    own = parser.parse_args()
    recipe = read_recipe(own.run / "recipe.yaml")
    tokenizer, streams, _ = recipe.build_data()
    models = [AutoModelForCausalLM.from_pretrained(path).eval() for path in (recipe.model.loaded_from, own.run)]
    scores, console = Table(title="rows that were not trained on"), Console(width=120, markup=False)
    for column in ("source", "prompts", "score", "before", "after"):
        scores.add_column(column)
    for name, stream in streams.items():
        asked = asked_in(stream.evaluation, tokenizer, own.num_prompts)
        written = [answers(model, tokenizer, asked) for model in models]
        scores.add_row(name, str(len(asked)), *scored(name, asked, written, own.run_code))
        console.print(example_of(name, asked[0], [texts[0] for texts in written]))
    console.print(scores)


if __name__ == "__main__":
    main()
