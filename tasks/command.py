"""The commands `mixer continual RECIPE.yaml` and `mixer continual-compare RUN ...`."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from jsonargparse import ArgumentParser, Namespace
from rich.table import Table

from mixer.cli.command import Command, add_json, build_recipe, recipe_command
from mixer.distributed.launch import build_together
from mixer.utils.console import console, only_json, print_json
from mixer.utils.files import write_text
from mixer.utils.text import print_lines
from tasks.continual.continual import ContinualRun
from tasks.continual.task_checkpoints import RUN_STATE_FILE, checkpoints_in, read_pace, remove_run
from tasks.metrics.metrics import all_metrics, title_of
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.recipe import ContinualRecipe
from tasks.report.matrices import read_matrices
from tasks.report.results import write_page
from tasks.task_folders import PAGE_FILE


def continual() -> Command:
    """Train on a sequence of tasks from a recipe."""
    return recipe_command(
        ContinualRecipe,
        _train,
        description="Trains on a sequence of tasks from a recipe and evaluates all tasks after each. Any field can be "
        "overridden: --training.learning_rate 1e-3.",
        usage="[--resume auto|must|never] [--json]",
        example="mixer continual recipes/continual.yaml --training.output_dir runs/digits",
        options={
            "--resume": {
                "choices": ("auto", "must", "never"),
                "help": "Resume the run in training.output_dir; if there is none, start a new one (auto) or fail "
                "(must). never: start a new one in any case, which removes the state of the old one. Default: start a "
                "new one, and fail if there is a run already.",
            }
        },
    )


def continual_compare() -> Command:
    """Compare continual runs."""
    parser = ArgumentParser(
        description="Compares the metrics and scores of continual runs; mixer report also shows their training."
    )
    parser.add_argument("runs", nargs="+", type=str, help="Output folders of runs.")
    parser.add_argument(
        "--output", type=str, metavar="PATH", help="Path of the page. Default: compared.html of the first."
    )
    add_json(parser)
    example = "mixer continual-compare runs/continual/without-memory runs/continual/memory"
    return Command(parser, _compare, example=example)


def _train(parser: ArgumentParser, config: Namespace, own: Namespace) -> None:
    def build() -> ContinualRun:
        run = build_recipe(ContinualRecipe, parser, config).build()
        run.check()  # before anything that is there is touched
        return run

    with only_json(own.json):
        run = build_together(parser, config, own.resume, build)
        run.hold_output()
        try:
            matrix = _train_run(run, own.resume, parser.dump(config, skip_validation=True))
        finally:
            run.release_output()
    folder = run.folder
    if run.args.should_save:
        page = folder / PAGE_FILE if (folder / PAGE_FILE).exists() else None
        _show({folder.name: matrix}, page, own.json, [_scores_table(matrix, read_pace(folder, matrix.task_names))])


def _train_run(run: ContinualRun, resume: str | None, recipe: str) -> ScoreMatrix:
    folder, args = run.folder, run.args
    with args.main_process_first(local=False):  # no rank looks at what is there before it is settled
        if args.should_save:
            _settle(folder, resume)
    run.begin(resume in ("auto", "must"))
    if args.should_save:
        write_text(folder / "recipe.yaml", recipe)
    return run.run()


def _settle(folder: Path, resume: str | None) -> None:
    """Refuses states that `--resume` does not allow, and removes the old run for a new start."""
    is_active = (folder / RUN_STATE_FILE).exists() or bool(checkpoints_in(folder))
    if resume is None and is_active:
        raise ValueError(
            f"training.output_dir: {folder} holds a continual run already: resume it (--resume auto), start a new "
            "one in its place (--resume never), or use another folder."
        )
    if resume == "must" and not is_active:
        raise ValueError(f"--resume must: there is no continual run in training.output_dir {folder} to resume.")
    if resume == "never":
        remove_run(folder)


def _compare(config: Namespace) -> None:
    folders = [Path(run) for run in config.runs]
    matrices = read_matrices(folders)
    page = write_page(matrices, Path(config.output) if config.output else folders[0] / "compared.html")
    _show(matrices, page, config.json)


def _show(
    matrices: Mapping[str, ScoreMatrix], page: Path | None, prints_json: bool, tables: Sequence[Table] = ()
) -> None:
    """Prints tables, metrics and the path of the page."""
    if prints_json:
        runs = [
            {
                "run": name,
                "metric": matrix.metric,
                "tasks": matrix.task_names,
                "scores": matrix.scores,
                "metrics": all_metrics(matrix, matrix.last_task),
            }
            for name, matrix in matrices.items()
        ]
        print_json({"runs": runs, "page": page})
        return
    for table in (*tables, _metrics_table(matrices)):
        console().print(table)
    if page is not None:
        print_lines(page)


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
    for name in dict.fromkeys(name for column in columns for name in column):
        table.add_row(title_of(name, metric), *(_written(column.get(name, np.nan)) for column in columns))
    return table


def _written(score: float) -> str:
    return "-" if np.isnan(score) else f"{score:.3f}"
