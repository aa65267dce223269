"""A table of methods: each is run with each seed, its strengths chosen on the first tasks."""

import csv
import io
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from accelerate import PartialState
from jsonargparse import ArgumentParser, Namespace

from mixer.distributed.collectives import RankSync
from mixer.tools.cli.command import build_recipe
from mixer.trainer.guard import NonFiniteLossError, NonFiniteWeightsError
from mixer.utils.errors import InvalidValueError, wrong_value
from mixer.utils.files import read_json, write_json, write_text
from mixer.utils.statistics import over_seeds
from mixer.utils.text import duration, print_lines, short_number
from tasks.continual.seeds import seed_folders
from tasks.metrics.metrics import title_of
from tasks.metrics.seed_scores import SeedScores, cell
from tasks.task_folders import RUN_STATE_FILE
from tasks.tools.recipe import ContinualRecipe
from tasks.tools.report.answer import paces_in
from tasks.tools.runs import Seeds, checked, placed, train_one, train_seeds
from tasks.tools.set_ups import SetUp, Strengths, set_ups_of

CHOICE_FILE, CSV_FILE, LATEX_FILE = "strengths.json", "table.csv", "table.tex"
_SHOWN = ("average_accuracy", "forgetting")
_ESCAPED = str.maketrans({"±": r"$\pm$", "%": r"\%", "_": r"\_", "&": r"\&", "#": r"\#"})


@dataclass
class MethodTable:
    """Runs of several methods on a recipe, and what they gave.

    Args:
        parser: The parser of recipes.
        config: The recipe; its `methods` are names.
        seeds: The seeds, or how many.
        resume: What `--resume` says.
        tune: `first:N` to choose strengths on the first N tasks; `None` takes each method as it is by default.
        grid: Values to try, for `set_ups_of`.

    Attributes:
        scores: The scores by method.
        strengths: The chosen ones, by method, with all that were tried.
        writes: Whether this rank writes.
    """

    parser: ArgumentParser
    config: Namespace
    seeds: Seeds
    resume: str | None
    tune: str | None
    grid: Sequence[str]
    scores: dict[str, SeedScores] = field(default_factory=dict)
    strengths: dict[str, dict[str, Any]] = field(default_factory=dict)
    writes: bool = False

    def __post_init__(self) -> None:
        self.folder, self.set_ups = Path(self.config.training.output_dir), set_ups_of(self.config.methods, self.grid)
        self._num_tasks = None if self.tune is None else _tasks_in(self.tune)
        if self.grid and self.tune is None:
            raise wrong_value("--grid", "is what --tune chooses from: say --tune first:3, too.")
        if self.resume == "must":
            if not any(self.folder.rglob(RUN_STATE_FILE)):
                raise ValueError(f"--resume must: there is no continual run in {self.folder} to resume.")
            self.resume = "auto"  # not all need be there

    def train(self) -> None:
        """Checks all methods, then tunes and trains one after the other."""
        metrics = {name: self._check(name, set_up) for name, set_up in self.set_ups.items()}
        if len(set(metrics.values())) > 1:
            raise wrong_value("score", f"must give all methods the same metric to compare, but gives {metrics}.")
        for name, set_up in self.set_ups.items():
            self.strengths[name] = found = self._tuned(name, set_up)
            self._keep(name, found)
            config = self._recipe(name, set_up, found["chosen"])
            self.writes, _, self.scores[name] = train_seeds(self.parser, config, self.seeds, self.resume)

    def _check(self, name: str, set_up: SetUp) -> str:
        """Refuses what the recipe cannot have, and runs that are there; returns the metric."""
        folders = seed_folders(self.seeds, self.config.training.seed, self.folder / name, self.resume is not None)
        seed, path = next(iter(folders.items()))
        first, *others = set_up.candidates if self._num_tasks else [{}]
        try:
            run = checked(self.parser, placed(self._recipe(name, set_up, first), path, seed), self.resume)
            if self._is_tuned(set_up):
                checked(self.parser, self._tuning(name, set_up, first), self.resume)
            for strengths in others:
                build_recipe(ContinualRecipe, self.parser, self._recipe(name, set_up, strengths))
        except (ValueError, TypeError) as error:
            raise InvalidValueError.about("methods", f"{name} does not go with the recipe. {error}") from error
        return run.scores.metric

    def _recipe(self, name: str, set_up: SetUp, strengths: Strengths) -> Namespace:
        return placed(set_up.changed(self.config, strengths), self.folder / name, self.config.training.seed)

    # ---- Strengths ----

    def _is_tuned(self, set_up: SetUp) -> bool:
        return self._num_tasks is not None and bool(set_up.grid)

    def _tuning(self, name: str, set_up: SetUp, strengths: Strengths) -> Namespace:
        """Returns the recipe of a run that tries strengths: no evaluation sample is in it."""
        config = self._recipe(name, set_up, strengths)
        config.tuning_tasks, config.held_out = self._num_tasks, {}
        tried = _in_words(strengths).replace(", ", "-")
        return placed(config, self.folder / name / "tuning" / tried, config.training.seed)

    def _tuned(self, name: str, set_up: SetUp) -> dict[str, Any]:
        """Tries all strengths on the first tasks with the recipe's seed; returns the best and all that were tried."""
        if not self._is_tuned(set_up):
            return {"tasks": None, "chosen": {}, "tried": []}
        scores = []
        for strengths in set_up.candidates:
            try:
                _, matrix = train_one(self.parser, self._tuning(name, set_up, strengths), self.resume)
                scores.append(float(matrix.scores[-1].mean()))
            except (NonFiniteLossError, NonFiniteWeightsError) as error:  # on all ranks
                scores.append(math.nan)
                print_lines(f"{name}, {_in_words(strengths)} has no score. {error}")
                continue
            print_lines(f"{name}, {_in_words(strengths)}: {matrix.metric} {scores[-1]:.3f} on the first tasks")
        if np.isnan(scores).all():
            raise wrong_value("--tune", f"found no strength of {name} whose runs have a score: try others by --grid.")
        best = (np.nanargmax if matrix.higher_is_better else np.nanargmin)(scores)
        known = [score if math.isfinite(score) else None for score in scores]  # JSON has no other numbers
        tried = [{**own, "score": score} for own, score in zip(set_up.candidates, known, strict=True)]
        return {"tasks": self._num_tasks, "chosen": set_up.candidates[int(best)], "tried": tried}

    def _keep(self, name: str, found: Mapping[str, Any]) -> None:
        """Writes the strengths; refuses to go on with runs that had others."""
        path, state = self.folder / name / CHOICE_FILE, PartialState()
        is_there = state.is_main_process and self.resume != "never" and path.exists()
        ranks = RankSync(state.num_processes)
        own = ranks.run_on_all(lambda: read_json(path)["chosen"] if is_there else found["chosen"])
        before = ranks.gather(own)[0]
        if before != found["chosen"]:
            raise wrong_value(
                "--resume",
                f"The runs in {path.parent} have {_in_words(before) or 'the defaults'}, but now it is "
                f"{_in_words(found['chosen']) or 'the defaults'}. Use --overwrite or another output_dir.",
            )
        if state.is_main_process:
            path.parent.mkdir(parents=True, exist_ok=True)
            write_json(path, dict(found))

    # ---- The table ----

    @property
    def about(self) -> str:
        """Says in a sentence or two what the figures are."""
        num_seeds = max(len(run.by_seed) for run in self.scores.values())
        base = next(iter(self.scores))
        tuned = "Strengths are the defaults."
        if self._num_tasks is not None:
            tuned = f"Strengths were chosen on the first {self._num_tasks} tasks, by a fifth of their training samples."
        return (
            f"Mean ± standard deviation of {num_seeds} seeds; against {base} the difference ± half of its 95 % "
            f"interval by a t-test, not corrected for the number of methods. {tuned}"
        )

    def rows(self) -> list[dict[str, Any]]:
        """Returns a row for each method, of numbers."""
        base = next(iter(self.scores.values()))
        return [self._row(name, run, base) for name, run in self.scores.items()]

    def _row(self, name: str, run: SeedScores, base: SeedScores) -> dict[str, Any]:
        found = self.strengths[name]
        tried = "; ".join(f"{_in_words({key: one[key] for key in found['chosen']})}" for one in found["tried"])
        row = {"method": name, "strengths": _in_words(found["chosen"]), "tried": tried, "seeds": len(run.by_seed)}
        for metric, measured in run.metrics().items():
            row |= {metric: measured.mean, f"{metric}_spread": measured.spread}
        if run is not base:
            apart = run.against(base)[_SHOWN[0]]
            row |= {"against_first": apart.mean, "against_first_bound": apart.bound, "paired_seeds": len(apart.seeds)}
        paces = [[*pace.values()] for pace in paces_in(self.folder / name) if pace]
        row["kept_bytes"] = over_seeds([pace[-1].get("kept_bytes") or 0 for pace in paces]).mean
        return row | {"seconds": over_seeds([sum(task["seconds"] for task in pace) for pace in paces]).mean}

    def cells(self) -> list[dict[str, str]]:
        """Returns a row for each method, of texts: what a reader compares."""
        (base, first), *_ = self.scores.items()
        apart = {name: run.against(first)[_SHOWN[0]].text() for name, run in self.scores.items() if name != base}
        return [
            {
                "method": row["method"],
                "strengths": row["strengths"] or "-",
                **{
                    title_of(name, first.mean.metric): cell(self.scores[row["method"]].metrics()[name], first)
                    for name in _SHOWN
                },
                f"against {base}": apart.get(row["method"], "-"),
                "kept": f"{short_number(round(row['kept_bytes']))}B",
                "training": duration(row["seconds"]),
            }
            for row in self.rows()
        ]

    def write(self) -> list[Path]:
        """Writes the table as CSV and as LaTeX."""
        rows, text = self.rows(), io.StringIO()
        writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), restval="")
        writer.writeheader()
        writer.writerows(rows)
        files = {CSV_FILE: text.getvalue(), LATEX_FILE: latex(self.cells(), self.about)}
        for name, content in files.items():
            write_text(self.folder / name, content)
        return [self.folder / name for name in files]


def latex(cells: Sequence[Mapping[str, str]], about: str) -> str:
    """Writes a table of the package booktabs.

    Args:
        cells: The rows: texts by column.
        about: What a comment above it says.
    """
    lines = [[*cells[0]], *([*row.values()] for row in cells)]
    texts = [[re.sub(r"^-(?=\d)", "$-$", value.translate(_ESCAPED)) for value in line] for line in lines]
    head, *rows = [" & ".join(line) + r" \\" for line in texts]
    columns = "ll" + "r" * (len(cells[0]) - 2)
    begin = [f"% {about}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule", head, r"\midrule"]
    return "\n".join([*begin, *rows, r"\bottomrule", r"\end{tabular}", ""])


def _tasks_in(tune: str) -> int:
    kind, _, number = tune.partition(":")
    if kind != "first" or not number.isdigit() or int(number) < 1:
        raise InvalidValueError(option="--tune", expected="first:N, such as first:3", found=tune)
    return int(number)


def _in_words(strengths: Strengths) -> str:
    return ", ".join(f"{name}={value:g}" for name, value in strengths.items())
