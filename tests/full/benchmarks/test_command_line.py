"""The comparison with peers: how samples are counted."""

import importlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.commands import COMMANDS
from benchmarks.forgetting import report
from benchmarks.peers.counted import Counter, largest_deviation, realised_shares

ROOT = Path(__file__).parents[3]


def test_the_documents_name_benchmarks_that_there_are() -> None:
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("*/*.md"),
        *ROOT.glob("docs/*/*.md"),
        ROOT / "Makefile",
        *ROOT.glob("benchmarks/**/*.py"),
    ]
    told = {name for page in pages for name in re.findall(r"-m benchmarks ([a-z]\w*)", page.read_text())}
    assert told <= set(COMMANDS)


def test_the_page_of_the_benchmarks_has_a_row_for_each_with_its_minutes() -> None:
    page = (ROOT / "benchmarks" / "README.md").read_text()
    rows = dict(re.findall(r"(?m)^\| `(\w+)` \| [^|]+ \|([^|\n]+)\|", page))
    assert list(rows) == list(COMMANDS)
    for name, command in COMMANDS.items():
        assert rows[name].split()[:1] == ([] if command.minutes is None else [str(command.minutes)]), name


def test_every_benchmark_can_be_imported() -> None:
    # Even the quick forms take over five seconds each: `make quick-benchmarks` runs them before a release.
    for command in COMMANDS.values():
        assert callable(importlib.import_module(f"benchmarks.{command.module}").main)


def test_the_table_has_changes_from_the_model_as_it_was_with_their_part_of_plain_fine_tuning() -> None:
    names = ("new", "exact", "prose", "public", "own", "checks")

    def line(task: str, way: str, seed: int, *values: float) -> dict[str, object]:
        return {"task": task, "way": way, "seed": seed, "share": 0.25, **dict(zip(names, values, strict=True))}

    results = [
        line("a", "before", 1, 5.0, 0.0, 4.0, 2.0, 2.0, 0.5),
        line("b", "before", 1, 3.0, 0.0, 4.0, 2.0, 2.0, 0.5),
        line("a", "plain", 1, 1.0, 0.5, 4.2, 3.0, 4.0, 0.25),
        line("b", "plain", 1, 1.0, 0.5, 4.6, 3.0, 4.0, 0.25),
        line("a", "kl", 1, 2.0, 0.25, 4.1, 2.0, 2.5, 0.5),
        line("b", "kl", 1, 2.0, 0.75, 4.1, 2.0, 2.5, 0.5),
        line("a", "kl", 2, 2.0, 0.5, 4.1, 2.0, 2.5, 0.5),
        line("c", "kl", 1, 2.0, 0.5, 4.1, 2.0, 2.5, 0.5),  # nobody knows what it was before
    ]
    assert report(results).splitlines()[2:] == [
        "| plain | 2 | 25% | -3.000 ± 1.414 (100%) | +50% ± 0% | +0.400 ± 0.283 (100%) | +1.000 ± 0.000 (100%) | "
        "+2.000 ± 0.000 (100%) | -25% ± 0% |",
        "| kl | 3 | 25% | -2.333 ± 1.155 (67%) | +50% ± 25% | +0.100 ± 0.000 (25%) | +0.000 ± 0.000 (0%) | "
        "+0.500 ± 0.000 (25%) | +0% ± 0% |",
    ]


def samples(*pairs: tuple[int, int]) -> np.ndarray:
    return np.array(pairs, dtype=np.int64).reshape(-1, 2)


def test_shares_and_the_largest_deviation() -> None:
    batches = [samples((0, 0), (0, 1)), samples((1, 0), (1, 1))]
    assert realised_shares(np.concatenate(batches), 3) == [0.5, 0.5, 0.0]
    assert largest_deviation(batches, [0.5, 0.5, 0.0]) == 1.0
    assert largest_deviation(batches, [0.25, 0.5, 0.25]) == 1.5


def test_only_training_is_counted_and_the_columns_are_taken_out() -> None:
    class Inputs(torch.nn.Module):
        def forward(self, **inputs: Any) -> list[str]:
            return sorted(inputs)

    model, counter = Inputs(), Counter()
    counter.attach(model)
    batch = {"input_ids": torch.ones(2), "source": torch.tensor([1, 0]), "row": torch.tensor([5, 6])}
    assert model(**batch) == ["input_ids"]
    with torch.no_grad():
        model(**batch)
    model.eval()
    assert model(**batch) == ["input_ids"]
    assert counter.samples().tolist() == [[1, 5], [0, 6]]
