"""`mixer continual RECIPE.yaml`, and `mixer continual-compare RUN ...` for several such runs."""

import shutil
import sys
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jsonargparse import ArgumentParser, Namespace
from rich.console import Console
from rich.table import Table

from mixer.commands import Command, build_recipe
from tasks.continual import SCORES_FILE
from tasks.continual_recipe import ContinualRecipe
from tasks.ends import RUN_STATE_FILE
from tasks.metrics import all_metrics, title_of
from tasks.pace import read_pace
from tasks.results import METRICS_FILE, PAGE_FILE, write_page
from tasks.score_matrix import ScoreMatrix

_FIELDS = tuple(field.name for field in fields(ContinualRecipe) if field.name != "training")
_RESUME = ("auto", "must", "never")


def continual() -> Command:
    """Gives the command that trains on a sequence of tasks.

    Returns:
        The command.
    """
    parser = ArgumentParser(
        description="Trains on a sequence of tasks by a recipe and scores all of them after each. Every field can be "
        "overridden: --training.learning_rate 1e-3.",
        usage="mixer continual RECIPE.yaml [--resume auto|must|never] [--FIELD VALUE ...]",
        allow_abbrev=False,
    )
    parser.add_argument("--recipe", action="config", help="Path of the recipe, a YAML file.")
    parser.add_argument(
        "--resume",
        type=str,
        default=None,
        metavar="auto|must|never",
        help="Go on with the run in training.output_dir and start anew where there is none (auto) or refuse to (must), "
        "or start anew in any case, which removes the state of the one that is there (never). Default: start, and "
        "refuse where there is one.",
    )
    parser.add_class_arguments(ContinualRecipe)
    summary = "train on a sequence of tasks by a recipe"
    return Command(parser, lambda config: _train(parser, config), summary, recipe_class=ContinualRecipe)


def continual_compare() -> Command:
    """Gives the command that puts continual runs side by side.

    Returns:
        The command.
    """
    parser = ArgumentParser(description="Puts the metrics and heat maps of continual runs side by side.")
    parser.add_argument("runs", nargs="+", type=str, help="Output folders of runs.")
    parser.add_argument(
        "--output",
        type=str,
        default=None,
        metavar="PATH",
        help="Path of the page. Default: compared.html of the first.",
    )
    return Command(parser, lambda config: _compare(config.runs, config.output), "put continual runs side by side")


def _train(parser: ArgumentParser, config: Namespace) -> None:
    resume = config.pop("resume")  # how it was launched is no part of what is trained
    recipe = build_recipe(ContinualRecipe, parser, config, _FIELDS, otherwise="training")
    folder, args = Path(str(recipe.training.output_dir)), recipe.training
    run = recipe.build()
    run.check()  # before anything that is there is touched
    with args.main_process_first(local=False):  # no rank looks at what is there before it is settled
        if args.should_save:
            _settle(folder, resume)
    run.begin(resume in ("auto", "must"))
    if args.should_save:
        folder.mkdir(parents=True, exist_ok=True)
        parser.save(config, str(folder / "recipe.yaml"), overwrite=True, skip_validation=True)
    matrix = run.run()
    if args.should_save:
        console = _console()
        console.print(_scores_table(matrix, read_pace(folder, matrix.task_names)))
        console.print(_metrics_table({folder.name: matrix}))
        if (folder / PAGE_FILE).exists():
            print(folder / PAGE_FILE)  # noqa: T201


def _settle(folder: Path, resume: str | None) -> None:
    """Refuses what `--resume` does not allow, and removes what a new start must not find."""
    if resume not in (None, *_RESUME):
        raise ValueError(f"--resume must be auto, must or never, got {resume!r}.")
    checkpoints = [*folder.glob("[0-9]*-*/checkpoint-*"), *folder.glob("[0-9]*-*/end")]
    is_there = (folder / RUN_STATE_FILE).exists() or bool(checkpoints)
    if resume is None and is_there:
        raise ValueError(
            f"training.output_dir: {folder} holds a continual run already: go on with it (--resume auto), start anew "
            "in its place (--resume never), or take another folder."
        )
    if resume == "must" and not is_there:
        raise ValueError(f"--resume must: there is no continual run in training.output_dir {folder} to go on with.")
    if resume == "never":
        # The state goes first: what is left of a run is then none.
        for name in (RUN_STATE_FILE, SCORES_FILE, METRICS_FILE, PAGE_FILE):
            (folder / name).unlink(missing_ok=True)
        for checkpoint in checkpoints:
            shutil.rmtree(checkpoint)


def _compare(runs: list[str], output: str | None) -> None:
    folders = [Path(run) for run in runs]
    names = [folder.name for folder in folders]
    names = names if len(set(names)) == len(names) else runs
    if len(set(names)) < len(names):
        raise ValueError(f"runs: each must be named once, got {runs}.")
    matrices = {name: ScoreMatrix.from_file(folder / SCORES_FILE) for name, folder in zip(names, folders, strict=True)}
    _console().print(_metrics_table(matrices))
    page = write_page(matrices, Path(output) if output else folders[0] / "compared.html")
    if page is not None:
        print(page)  # noqa: T201


def _console() -> Console:
    return Console(width=None if sys.stdout.isatty() else 120)


def _scores_table(matrix: ScoreMatrix, pace: pd.DataFrame) -> Table:
    table = Table("", *matrix.task_names, "samples/s", title=f"{matrix.metric.capitalize()} on each task")
    for after in matrix.recorded:
        name = matrix.task_names[after - 1]
        rate = f"{pace.samples_per_second[name]:,.0f}" if after and name in pace.index else "-"
        scores = (_written(score) for score in matrix.scores[after])
        table.add_row(f"after {name}" if after else "before", *scores, rate)
    return table


def _metrics_table(matrices: Mapping[str, ScoreMatrix]) -> Table:
    table = Table("", *matrices, title="Metrics")
    columns: list[Mapping[str, Any]] = [all_metrics(matrix, matrix.last_task) for matrix in matrices.values()]
    metric = next(iter(matrices.values())).metric
    for name in columns[0]:
        table.add_row(title_of(name, metric), *(_written(column[name]) for column in columns))
    return table


def _written(score: float) -> str:
    return "-" if np.isnan(score) else f"{score:.3f}"
