"""How much of what a chat model could do is left after fine-tuning, with no row of its old data?

`python -m benchmarks forgetting --data-dir DIR` teaches SmolLM2-135M-Instruct a task in several ways, with the same
number of rows in all, and prints a table: what the task gained, and what was lost on general text, instructions, the
model's own answers, and exact checks of copying, sums and formats. A run's result is a line of `--results`; what is
there is not run again. `--report` prints it and runs nothing.

Only the upper four of 30 layers and the last norm are trained (`benchmarks.quality.smollm2`), for 40 steps of eight
rows. Ways:

- `plain`: the task alone; `lora`: adapters of rank 16 on the same layers;
- `public`: a quarter of each batch are public instructions with their answers;
- `self`: a quarter are answers that the model wrote itself, before the run, to other such instructions;
- `kl`: these rows, with the model's own logits as targets (`replay.ReferenceKL`);
- `kl_mixed`: as `kl`, half of them texts that the model wrote from a first word;
- `average`: as `plain`; then `FinalWeights`, the own answers rising by 2 % at most on development rows;
- `bound`: as `kl`, the share by `ReplayBound`, which lets the loss of own answers rise by 2 %;
- `kl_average`: as `kl`, then `FinalWeights`.
"""

import argparse
import json
import multiprocessing
import re
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import LlamaForCausalLM, PrinterCallback, set_seed
from transformers.utils import logging

from benchmarks.common import QUIET
from benchmarks.quality.answers import given, whole_model
from benchmarks.quality.instructions import EXACT, Pair
from benchmarks.quality.runs import evaluate
from benchmarks.quality.smollm2 import Rows, chat_row, chosen_pairs, new_model, of_pairs, tokenizer, widened
from mixer import MixingConfig, MixingTrainer, Objective
from replay import ReferenceKL, ReplayBound, self_generated
from tasks.methods import FinalWeights
from tasks.sources import smollm2

TASKS = ("requests", "tool_calls", "characters")
WAYS = ("plain", "lora", "public", "self", "kl", "kl_mixed", "average", "bound", "kl_average")
_REPLAYED: Mapping[str, tuple[str, ...]] = {
    "public": ("public",),
    "self": ("own",),
    "kl_mixed": ("own", "texts"),
    **dict.fromkeys(("kl", "bound", "kl_average"), ("own",)),
}
_SHARE, _MAX_RISE = 0.25, 0.02
_NUM_STEPS, _BATCH_SIZE, _NUM_OWN, _NUM_HELD, _NUM_DEVELOPMENT = 40, 8, 96, 24, 12
_FIRST_WORDS = ("The", "In", "A", "It", "He", "After", "This", "On", "At", "There", "For", "She")  # of texts
_NUM_NEW, _LENGTH = 160, 144  # tokens of a chat at most, as of the other sources
_RATES = {"lora": 2e-3}  # others: 5e-4
# Of a run's result, with their words in the table.
_FIGURES = {"new": "loss of the task", "exact": "exact", "prose": "general text"}
_FIGURES |= {"public": "instructions", "own": "own answers", "checks": "checks"}
_WORDS = ("apple", "river", "seven", "candle", "orange", "window", "garden", "silver", "button", "planet", "copper")


def checks() -> list[tuple[str, Callable[[str], bool]]]:
    """Makes questions whose answers have an exact check: copying, sums, and formats.

    Returns:
        Each question, and what tells whether an answer is right.
    """

    def has(word: str) -> Callable[[str], bool]:
        return lambda answer: re.search(rf"\b{word}\b", answer) is not None

    found = [(f"Repeat this word and say nothing else: {word}", has(word)) for word in _WORDS]
    sums = [(a, b) for a in (1, 2, 3, 5, 10) for b in (1, 2, 4)]
    found += [(f"What is {a} + {b}? Answer with the number only.", has(str(a + b))) for a, b in sums]
    found += [(f"Write the word {word} in capital letters.", has(word.upper())) for word in _WORDS]
    return found


def share_right(model: Any) -> float:
    """Gives the share of `checks` that a model passes."""
    asked = checks()
    answers = given(model, _prompts([question for question, _ in asked]), max_new_tokens=16)
    return float(np.mean([is_right(answer) for (_, is_right), answer in zip(asked, answers, strict=True)]))


def _prompts(questions: Sequence[str]) -> list[list[int]]:
    rows = [chat_row(question, "") for question in questions]
    return [list(row.ids[: row.num_prompt]) for row in rows]


def written(name: str, folder: Path, data_dir: Path) -> list[Pair]:
    """Lets SmolLM2 write rows before anything is trained; they are kept in a folder.

    Args:
        name: `own` for answers to public instructions, `texts` for texts from a first word.
        folder: Where they are kept.
        data_dir: The data's folder.

    Returns:
        Questions, which are empty for texts, and answers.
    """
    path = folder / f"{name}.jsonl"
    if not path.is_file():
        questions = [question for question, _ in chosen_pairs("instructions", str(data_dir), "train")]
        model = LlamaForCausalLM.from_pretrained(smollm2()).eval()
        options: dict[str, Any] = {"max_new_tokens": 48, "batch_size": _NUM_OWN, "as_chat": name == "own"}
        prompts = questions if name == "own" else _FIRST_WORDS
        rows = self_generated(model, tokenizer(), num_rows=_NUM_OWN, prompts=prompts, **options)
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    return [("", row["text"]) if name == "texts" else (row["prompt"], row["completion"]) for row in rows]


class Sources:
    """The rows of all sources by part, as what the lower layers make of them, read when they are asked for.

    Args:
        task: One of `TASKS`, the source `new`.
        folder: Where the model's own answers are kept.
        data_dir: The data's folder.
    """

    def __init__(self, task: str, folder: Path, data_dir: Path):
        self._names = {"new": task, "public": "instructions", "prose": "wikipedia"}
        self._folder, self._data_dir = folder, data_dir

    def pairs(self, name: str, part: str) -> Sequence[Pair]:
        """Returns the pairs of a part of a source."""
        if name in self._names:
            return chosen_pairs(self._names[name], str(self._data_dir), part)
        own = [pair for pair in written(name, self._folder, self._data_dir) if len(chat_row(*pair).ids) <= _LENGTH]
        ends = {"test": (0, _NUM_HELD), "validation": (_NUM_HELD, _NUM_HELD + _NUM_DEVELOPMENT)}
        ends["train"] = (_NUM_HELD + _NUM_DEVELOPMENT, _NUM_OWN)
        return own[slice(*ends[part])]

    def rows(self, name: str, part: str, most: int | None = None) -> Rows:
        """Returns the rows of a part of a source, `most` of them at most."""
        rows = of_pairs(self.pairs(name, part)[:most])
        return Rows(widened(rows.read_columns(np.arange(len(rows)))))


def options_of(way: str, sources: Sources) -> dict[str, Any]:
    """Returns what a way passes to the trainer."""
    replayed = _REPLAYED.get(way, ())
    streams = {"new": sources.rows("new", "train", _NUM_NEW)}
    streams |= {name: sources.rows(name, "train", _NUM_OWN) for name in replayed}
    options: dict[str, Any] = {"train_dataset": streams}
    if replayed:
        options["mixing"] = {"new": 1.0 - _SHARE, **dict.fromkeys(replayed, _SHARE / len(replayed))}
    methods: list[Any] = [ReferenceKL(replayed)] if way in ("kl", "kl_mixed", "bound", "kl_average") else []
    if way == "bound" or way.endswith("average"):
        held = {name: sources.rows(name, "validation", _NUM_DEVELOPMENT) for name in ("new", "own")}
        options["eval_dataset"] = held
    if way == "bound":
        options["mixing"] = ReplayBound(_MAX_RISE, old=["own"], first_ratio=_SHARE)
    if way.endswith("average"):
        options["objective"] = Objective(["new"], bounds={"own": 1.0 + _MAX_RISE}, development_sets=held)
        methods.append(FinalWeights(mean_from=0.8))
    return {**options, "methods": methods}


def run_once(task: str, way: str, seed: int, folder: Path, data_dir: Path, num_steps: int) -> dict[str, Any]:
    """Trains once.

    Args:
        task: One of `TASKS`.
        way: One of `WAYS`, or `before` for the model as it is.
        seed: Seed of the order.
        folder: Where the model's own answers are kept.
        data_dir: The data's folder.
        num_steps: Number of steps.

    Returns:
        Losses of test rows by source, `exact` (the task's answers), `checks`, `seconds` of the processor, and
        `share` (of replayed rows).
    """
    logging.set_verbosity_error()  # type: ignore[no-untyped-call]
    sources, figures = Sources(task, folder, data_dir), dict[str, Any]()
    set_seed(seed)
    model: Any = new_model()
    started = time.process_time()
    if way != "before":
        model, figures["share"], figures["final"] = _trained(model, way, seed, sources, num_steps)
    figures["seconds"] = time.process_time() - started
    for name in ("new", "public", "prose", "own"):
        figures[name] = evaluate(model, sources.rows(name, "test"), "")["loss"]
    whole = whole_model(model)
    questions = sources.pairs("new", "test")[:_NUM_HELD]
    answers = given(whole, _prompts([question for question, _ in questions]), max_new_tokens=48)
    is_right = [EXACT[task](answer) == EXACT[task](own) for (_, answer), own in zip(questions, answers, strict=True)]
    return {**figures, "exact": float(np.mean(is_right)), "checks": share_right(whole)}


def _trained(model: Any, way: str, seed: int, sources: Sources, num_steps: int) -> tuple[Any, float, Any]:
    options = options_of(way, sources)
    if way == "lora":
        from peft import LoraConfig, get_peft_model

        layers = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
        model = get_peft_model(model, LoraConfig(r=16, lora_alpha=32, target_modules=layers))
    evaluates = way == "bound"
    with tempfile.TemporaryDirectory() as output:
        arguments = MixingConfig(
            **QUIET,
            output_dir=output,
            max_steps=num_steps,
            per_device_train_batch_size=_BATCH_SIZE,
            per_device_eval_batch_size=16,
            learning_rate=_RATES.get(way, 5e-4),
            lr_scheduler_type="cosine",
            warmup_steps=4,
            weight_decay=0.01,
            eval_strategy="steps" if evaluates else "no",
            eval_steps=max(num_steps // 20, 1),
            eval_on_start=evaluates,
            seed=seed,
        )
        trainer = MixingTrainer(model, arguments, batch_size=_BATCH_SIZE, **options)
        trainer.remove_callback(PrinterCallback)
        trainer.train()
        counts = trainer.ledger.to_pandas().groupby("stream")["count"].sum()
        note = json.loads((Path(output) / "ledger" / "ledger.json").read_text())
    final = note.get("run", {}).get("final_weights")
    share = 1.0 - float(counts["new"]) / float(counts.sum())
    return (model.merge_and_unload() if way == "lora" else model), share, final


def report(results: Sequence[Mapping[str, Any]]) -> str:
    """Makes a table of results: changes from the model as it was, mean and standard deviation over tasks and seeds.

    In brackets is the mean's part of that of `plain` on the same tasks and seeds.

    Args:
        results: The lines of the file.

    Returns:
        Markdown.
    """
    before = {line["task"]: line for line in results if line["way"] == "before"}
    changes = {
        (line["way"], line["task"], line["seed"]): {name: line[name] - before[line["task"]][name] for name in _FIGURES}
        for line in results
        if line["way"] in WAYS and line["task"] in before
    }
    lines = [f"| way | runs | replayed | {' | '.join(_FIGURES.values())} |", "| --- " * (3 + len(_FIGURES)) + "|"]
    for way in [way for way in WAYS if any(key[0] == way for key in changes)]:
        keys = [key for key in changes if key[0] == way]
        share = np.mean([line["share"] for line in results if line["way"] == way])
        cells = [_cell(name, changes, keys) for name in _FIGURES]
        lines.append(f"| {way} | {len(keys)} | {share:.0%} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(name: str, changes: Mapping[Any, Mapping[str, float]], keys: Sequence[Any]) -> str:
    own = [changes[key][name] for key in keys]
    digits = "+.0%" if name in ("exact", "checks") else "+.3f"
    words = f"{np.mean(own):{digits}}" + (f" ± {np.std(own, ddof=1):{digits[1:]}}" if len(own) > 1 else "")
    plain = {key: changes["plain", *key[1:]][name] for key in keys if ("plain", *key[1:]) in changes}
    if name in ("exact", "checks") or not plain:
        return words
    return f"{words} ({sum(changes[key][name] for key in plain) / sum(plain.values()):.0%})"


def main(argv: Sequence[str] | None = None) -> None:
    """Runs what is missing, and prints the table.

    Args:
        argv: Command line; `None` takes the process's own.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, help="folder of the data")
    parser.add_argument("--task", nargs="+", choices=TASKS, default=[*TASKS])
    parser.add_argument("--way", nargs="+", choices=WAYS, default=[*WAYS])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=_NUM_STEPS)
    parser.add_argument("--folder", type=Path, default=Path("runs/forgetting"), help="keeps the model's own answers")
    parser.add_argument("--results", type=Path, default=Path(__file__).with_suffix(".jsonl"), help="one run per line")
    parser.add_argument("--parallel", type=int, default=1, help="processes of one thread each")
    parser.add_argument("--report", action="store_true", help="print what was run, and run nothing")
    args = parser.parse_args(argv)
    if args.data_dir is None and not args.report:
        parser.error("tasks and texts are files: give their folder by --data-dir.")
    if not args.report:
        keys = [
            {"task": task, "way": way, "seed": seed, "steps": args.steps}
            for seed in range(1, args.seeds + 1)
            for task in args.task
            for way in (["before", *args.way] if seed == 1 else args.way)
        ]
        missing = [key for key in keys if not any(key.items() <= line.items() for line in _lines(args.results))]
        if missing:
            for name in ("own", "texts"):
                written(name, args.folder, args.data_dir)
        with ProcessPoolExecutor(args.parallel, multiprocessing.get_context("spawn"), max_tasks_per_child=1) as pool:
            list(pool.map(partial(_run_and_write, args=args), missing))
    print(report([line for line in _lines(args.results) if line["steps"] == args.steps]))


def _run_and_write(key: Mapping[str, Any], args: argparse.Namespace) -> None:
    torch.set_num_threads(1)
    found = run_once(key["task"], key["way"], key["seed"], args.folder, args.data_dir, key["steps"])
    with args.results.open("a") as file:
        file.write(f"{json.dumps({**key, **found})}\n")
    print(*key.values(), f"{found['seconds']:.0f} s", flush=True)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.is_file() else []


if __name__ == "__main__":
    main()
