"""GRPO on tasks of unequal difficulty: `python -m benchmarks rewards`.

A Llama of two layers learns three tasks of single characters a little by supervised learning: sorting digits,
writing numbers with zeros, and finding the largest digit. Then GRPO trains it with a reward of 1 for an exact answer,
on prompts by several policies, all with equally many completions. Figures are pass rates of held-out prompts, at the
temperature of the training, over seeds that have other prompts, base models and completions. Compared are the worst of
the three tasks and their mean.
"""

import copy
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import datasets
import numpy as np
import torch
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from benchmarks.common import QUIET, new_parser, show, write_json

CHARACTERS = "0123456789:=,/"
NUM_TESTED, NUM_SAMPLES, NUM_GENERATIONS, LONGEST = 100, 8, 8, 8
# Prompts of each task, so that proportional shares are far from even ones.
SIZES = {"sort": 200, "pad": 600, "largest": 1800}


@dataclass(frozen=True)
class Work:
    """How much is trained.

    Args:
        num_rounds: Rounds of generation.
        num_prompts: Prompts of a round.
        num_steps: Supervised steps before.
    """

    num_rounds: int = 100
    num_prompts: int = 16
    num_steps: int = 120


def _sort(random: np.random.Generator) -> tuple[str, str]:
    digits = random.integers(0, 10, 7).astype(str).tolist()
    return f"{''.join(digits)}:", "".join(sorted(digits))


def _largest(random: np.random.Generator) -> tuple[str, str]:
    digits = random.integers(0, 10, 7).astype(str).tolist()
    return f"{''.join(digits)}=", max(digits)


def _pad(random: np.random.Generator) -> tuple[str, str]:
    numbers = random.integers(1, 25, 3).tolist()
    return ",".join(map(str, numbers)) + "/", "".join(f"{number:02}" for number in numbers)


TASKS: Mapping[str, Callable[[np.random.Generator], tuple[str, str]]] = {
    "sort": _sort,
    "pad": _pad,
    "largest": _largest,
}


def prompts_of(task: str, seed: int, supervised: int = 2_000) -> dict[str, list[tuple[str, str]]]:
    """Draws different prompts of a task: some to train by rewards, some to test, and some for supervised learning."""
    random, found = np.random.default_rng([seed, [*TASKS].index(task)]), dict[str, str]()
    wanted = SIZES[task] + NUM_TESTED
    for _ in range(100 * wanted):
        found.setdefault(*TASKS[task](random))
        if len(found) == wanted:
            break
    rows = [*found.items()]
    tested = rows[: min(NUM_TESTED, len(rows) // 3)]
    held_out, more = {prompt for prompt, _ in tested}, [TASKS[task](random) for _ in range(supervised)]
    return {"test": tested, "train": rows[len(tested) :], "supervised": [row for row in more if row[0] not in held_out]}


def tokenizer() -> PreTrainedTokenizerFast:
    """Makes a tokenizer of single characters."""
    vocabulary = {token: number for number, token in enumerate(["<pad>", "<eos>", "<unk>", *CHARACTERS])}
    inner = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))  # noqa: S106 no password
    inner.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    inner.decoder = decoders.Fuse()
    names = {"pad_token": "<pad>", "eos_token": "<eos>", "unk_token": "<unk>"}
    return PreTrainedTokenizerFast(tokenizer_object=inner, padding_side="left", **names)


def base_model(tasks: Mapping[str, Any], seed: int, num_steps: int) -> LlamaForCausalLM:
    """Trains a model a little on answers, equally much of each task."""
    torch.manual_seed(seed)
    encoder, sizes = tokenizer(), {"hidden_size": 64, "intermediate_size": 192, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=len(encoder), num_hidden_layers=2, pad_token_id=0, eos_token_id=1, **sizes)
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    random = np.random.default_rng(seed)
    for _ in range(num_steps):
        own = [
            rows["supervised"][int(random.integers(len(rows["supervised"])))]
            for rows in tasks.values()
            for _ in range(24)
        ]
        ids = encoder([prompt + answer + "<eos>" for prompt, answer in own], return_tensors="pt", padding=True)
        labels = ids["input_ids"].clone()
        for row, (_, answer) in enumerate(own):
            labels[row, : -len(answer) - 1] = -100
        model(**ids, labels=labels).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def exact(completions: Sequence[str], answer: Sequence[str], **columns: Any) -> list[float]:
    """The reward: 1 for the answer."""
    return [float(own == wanted) for own, wanted in zip(completions, answer, strict=True)]


@torch.no_grad()
def pass_rate(model: Any, rows: Sequence[tuple[str, str]]) -> float:
    """Samples completions of each prompt; returns the share that is right."""
    encoder = tokenizer()
    ids = encoder([prompt for prompt, _ in rows for _ in range(NUM_SAMPLES)], return_tensors="pt", padding=True)
    torch.manual_seed(0)
    model.eval()
    kept = {"input_ids": ids["input_ids"], "attention_mask": ids["attention_mask"]}
    options = {"max_new_tokens": LONGEST, "do_sample": True, "pad_token_id": 0, "top_k": 0}
    texts = encoder.batch_decode(
        model.generate(**kept, **options)[:, ids["input_ids"].shape[1] :], skip_special_tokens=True
    )
    return float(np.mean(exact(texts, [answer for _, answer in rows for _ in range(NUM_SAMPLES)])))


def compared() -> dict[str, tuple[Callable[[], Any], int]]:
    """Names what is compared: how each policy is made, and the size of a buffer of learnable prompts beside it."""
    from mixer.policies import MTGRPO, Learnability, Proportional, Uniform
    from replay import ReplayRatio

    return {
        "Proportional": (Proportional, 0),
        "Uniform": (Uniform, 0),
        "MTGRPO": (MTGRPO, 0),
        "MTGRPO(worst_weight=1)": (partial(MTGRPO, worst_weight=1.0), 0),
        "Learnability": (Learnability, 0),
        "Uniform, a quarter replayed": (lambda: ReplayRatio(0.25, policy=Uniform()), 200),
    }


def streams_of(tasks: Mapping[str, Any], buffer: int = 0) -> dict[str, Any]:
    """Makes the streams of prompts, with a buffer of learnable ones if it has a size."""
    from replay import ReplayBuffer
    from replay.selection import Learnable

    sets: dict[str, Any] = {
        name: datasets.Dataset.from_list([{"prompt": prompt, "answer": answer} for prompt, answer in rows["train"]])
        for name, rows in tasks.items()
    }
    return sets if not buffer else {**sets, "learnable": ReplayBuffer(buffer, Learnable())}


def trained(model: Any, tasks: Mapping[str, Any], policy: Any, seed: int, work: Work, buffer: int) -> dict[str, Any]:
    """Trains by GRPO; returns the prompts of each stream, and the share of groups without a signal."""
    from mixer.trainer.grpo.trainers import MixingGRPOConfig, MixingGRPOTrainer

    with tempfile.TemporaryDirectory() as folder:
        args = MixingGRPOConfig(
            folder,
            **QUIET,
            per_device_train_batch_size=work.num_prompts * NUM_GENERATIONS,
            num_generations=NUM_GENERATIONS,
            max_completion_length=LONGEST,
            max_steps=work.num_rounds,
            learning_rate=3e-4,
            lr_scheduler_type="constant",
            seed=seed,
            bf16=False,
            gradient_checkpointing=False,
            handle_signals=False,
        )
        data = streams_of(tasks, buffer)
        trainer = MixingGRPOTrainer(model, exact, args, data, processing_class=tokenizer(), mixing=policy)
        trainer.train()
        shares = trainer.ledger.to_pandas().groupby("stream")["count"].sum()
        silent = trainer.ledger.rewards()
    return {
        "prompts": {name: int(shares[name]) for name in data},
        "silent": float((silent["silent"] * silent["groups"]).sum() / silent["groups"].sum()),
    }


def runs_of(seed: int, work: Work) -> Iterator[dict[str, Any]]:
    """Trains all policies from the base of a seed; yields their figures."""
    tasks = {task: prompts_of(task, seed) for task in TASKS}
    base = base_model(tasks, seed, work.num_steps)
    before = {task: pass_rate(base, rows["test"]) for task, rows in tasks.items()}
    for name, (make, buffer) in compared().items():
        model = copy.deepcopy(base)
        figures = trained(model, tasks, make(), seed, work, buffer)
        after = {task: pass_rate(model, rows["test"]) for task, rows in tasks.items()}
        sums = {"worst": min(after.values()), "mean": float(np.mean([*after.values()]))}
        yield {"policy": name, "seed": seed, "before": before, **figures, "after": after, **sums}


def main(argv: Sequence[str] | None = None) -> None:
    """Trains all policies on all seeds, and prints pass rates."""
    parser = new_parser(__doc__)
    parser.add_argument("--seeds", type=int, default=5, help="Number of seeds.")
    parser.add_argument("--rounds", type=int, default=Work.num_rounds, help="Rounds of generation.")
    options = parser.parse_args(argv)
    work = Work(3, 4, 20) if options.quick else Work(num_rounds=options.rounds)
    runs = []
    for seed in range(1 if options.quick else options.seeds):
        for run in runs_of(seed, work):
            runs.append(run)
            print(run, flush=True)
    report(runs)
    write_json(options.json, {"work": vars(work), "sizes": SIZES, "runs": runs})


def report(runs: Sequence[Mapping[str, Any]]) -> None:
    """Prints the mean and the standard deviation over seeds, and the paired difference from the better baseline."""
    cells = []
    of = {name: [run for run in runs if run["policy"] == name] for name in compared()}
    rivals = np.maximum(*(np.array([run["worst"] for run in of[name]]) for name in ("Proportional", "Uniform")))
    before = [np.mean([run["before"][task] for run in of["Uniform"]]) for task in TASKS]
    cells.append(["before", *(f"{100 * rate:.1f}" for rate in before), "", "", "", ""])
    for name, own in of.items():
        rates = [_in_words([run["after"][task] for run in own]) for task in TASKS]
        ahead = np.array([run["worst"] for run in own]) - rivals
        sums = [_in_words([run[key] for run in own]) for key in ("worst", "mean", "silent")]
        cells.append([name, *rates, *sums, "" if name in ("Proportional", "Uniform") else _in_words(ahead)])
    columns = ["policy", *TASKS, "worst", "mean", "silent groups", "worst, above the better of both"]
    show("Pass rates in %, mean ± standard deviation over seeds", columns, cells)


def _in_words(values: Sequence[float] | np.ndarray) -> str:
    numbers = 100 * np.asarray(values, dtype=np.float64)
    return f"{numbers.mean():.1f} ± {numbers.std(ddof=1) if len(numbers) > 1 else 0:.1f}"


if __name__ == "__main__":
    main()
