"""The commands `mixer continual RECIPE.yaml` and `mixer continual-compare RUN ...`."""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jsonargparse import ArgumentError, ArgumentParser, Namespace
from rich.table import Table

from mixer.tools.cli.command import Command, add_json, parser_of_runs, recipe_command
from mixer.tools.cli.train import OVERWRITE, TINY, resume_of
from mixer.tools.console import console, only_json, print_json, table_of
from mixer.trainer.method import Method
from mixer.utils.errors import wrong_value
from mixer.utils.statistics import Measured
from mixer.utils.text import print_lines
from tasks.continual.task_checkpoints import read_pace
from tasks.metrics.seed_scores import SeedScores, as_seed_scores
from tasks.task_folders import PAGE_FILE, folder_of_task
from tasks.tools.recipe import ContinualRecipe
from tasks.tools.report.matrices import metric_rows, read_scores, titled
from tasks.tools.report.results import write_page
from tasks.tools.runs import train_one, train_seeds
from tasks.tools.table import MethodTable


def continual() -> Command:
    """Train on a sequence of tasks from a recipe."""
    return recipe_command(
        ContinualRecipe,
        _train,
        description="Trains on a sequence of tasks from a recipe and evaluates all tasks after each. Any field can be "
        "overridden: --training.learning_rate 1e-3.",
        usage="[--methods NAME,NAME] [--seeds N] [--tune first:N] [--tiny] [--resume auto|must|never] [--overwrite]",
        example="mixer continual recipes/continual.yaml --training.output_dir runs/digits",
        options={
            "--tiny": {"action": "store_true", "help": TINY},
            "--seeds": {
                "type": int | list[int] | None,
                "metavar": "N",
                "help": "Run with N seeds, training.seed and those that follow, or with a list of seeds, each in its "
                "own folder training.output_dir/seed-SEED. With --resume auto, finished ones are not run again.",
            },
            "--tune": {
                "type": str,
                "metavar": "first:N",
                "help": "Choose the strengths of named methods on the first N tasks, by training samples that are held "
                "out of them.",
            },
            "--grid": {
                "type": str,
                "nargs": "+",
                "metavar": "NAME.ARGUMENT=VALUE,VALUE",
                "help": "Strengths that --tune tries, in place of a method's own: lwf.strength=1,4,16.",
            },
            "--overwrite": OVERWRITE,
            "--resume": {
                "choices": ("auto", "must", "never"),
                "help": "Resume the run in training.output_dir; if there is none, start a new one (auto) or fail "
                "(must). never, or --overwrite: start a new one in any case, which removes the state of the old one. "
                "Default: start a new one, and fail if there is a run already.",
            },
        },
    )


def continual_compare() -> Command:
    """Compare continual runs."""
    parser = parser_of_runs(
        "Compares the metrics and scores of continual runs; mixer report also shows their training."
    )
    parser.add_argument(
        "--output", type=str, metavar="PATH", help="Path of the page. Default: compared.html of the first."
    )
    add_json(parser)
    example = "mixer continual-compare runs/continual/without-memory runs/continual/memory"
    return Command(parser, _compare, example=example)


def _train(parser: ArgumentParser, config: Namespace, own: Namespace) -> None:
    folder, resume = Path(config.training.output_dir), resume_of(own)
    if isinstance(config.methods, str):
        _refuse_wrong_list(config.methods)
        _train_table(parser, config, own, resume)
        return
    if own.tune is not None or own.grid:
        raise wrong_value("--tune", "and --grid are for names of methods: --methods lwf,derpp.")
    with only_json(own.json):
        if own.seeds is None:
            writes, matrix = train_one(parser, config, resume)
            folders, scores = {0: folder}, as_seed_scores(matrix)
        else:
            writes, folders, scores = train_seeds(parser, config, own.seeds, resume)
        page = write_page({folder.name: scores}, folder / PAGE_FILE) if writes else None
    if writes:
        _show({folder.name: scores}, page, own.json, [_scores_table(scores, folders)])
        print_lines(f"mixer: {_ending(scores, folders)} Next: mixer report {folder}", file=sys.stderr)


def _refuse_wrong_list(methods: str) -> None:
    """Says what is wrong with a list of classes, which the parser takes for names then."""
    if methods.lstrip().startswith("["):
        parser = ArgumentParser(exit_on_error=False)
        parser.add_argument("--methods", type=list[Method])
        try:
            parser.parse_args([f"--methods={methods}"])
        except ArgumentError as error:
            raise wrong_value("methods", f"must be names, or a list of classes. {error}", found=methods) from None


def _ending(scores: SeedScores, folders: Mapping[int, Path]) -> str:
    """Describes the end of a run, or of those of several seeds, and where the model is."""
    names, (seed, folder) = scores.mean.task_names, next(iter(folders.items()))
    end = folder_of_task(folder, len(names) - 1, names[-1]) / "end"
    runs, of_seed = ("The run", "") if len(folders) == 1 else (f"The runs of {len(folders)} seeds", f" of seed {seed}")
    return f"{runs} ended after all {len(names)} tasks. Final model{of_seed}: {end}."


def _train_table(parser: ArgumentParser, config: Namespace, own: Namespace, resume: str | None) -> None:
    with only_json(own.json):
        table = MethodTable(parser, config, 1 if own.seeds is None else own.seeds, resume, own.tune, own.grid or ())
        table.train()
        if not table.writes:
            return
        page, files = write_page(table.scores, table.folder / PAGE_FILE), table.write()
    if own.json:
        first = next(iter(table.scores.values()))
        runs = [_as_data(name, run, None if run is first else first) for name, run in table.scores.items()]
        print_json({"runs": runs, "strengths": table.strengths, "page": page, "files": files})
        return
    console().print(table_of("Methods", table.cells(), table.about))
    print_lines(*filter(None, [*files, page]))


def _compare(config: Namespace) -> None:
    folders = [Path(run) for run in config.runs]
    scores = read_scores(folders)
    page = write_page(scores, Path(config.output) if config.output else folders[0] / "compared.html")
    _show(scores, page, config.json)


def _show(scores: Mapping[str, SeedScores], page: Path | None, prints_json: bool, tables: Sequence[Table] = ()) -> None:
    """Prints tables, metrics and the path of the page."""
    if prints_json:
        first = next(iter(scores))
        runs = [_as_data(name, run, None if name == first else scores[first]) for name, run in scores.items()]
        print_json({"runs": runs, "page": page})
        return
    for table in (*tables, _metrics_table(scores)):
        console().print(table)
    if page is not None:
        print_lines(page)


def _as_data(name: str, scores: SeedScores, first: SeedScores | None) -> dict[str, Any]:
    """Returns the scores of a run as plain data; of several seeds also their spreads and each by itself."""
    metrics, matrix = scores.metrics(), scores.mean
    data = {
        "run": name,
        "metric": matrix.metric,
        "tasks": matrix.task_names,
        "scores": scores.scores,
        "metrics": {metric: measured.mean for metric, measured in metrics.items()},
    }
    if len(scores.by_seed) > 1:
        spreads = {metric: measured.spread for metric, measured in metrics.items()}
        of_metrics = scores.metrics_by_seed().items()
        by_seed = {
            seed: {"scores": matrix.scores, "metrics": {metric: values[seed] for metric, values in of_metrics}}
            for seed, matrix in scores.by_seed.items()
        }
        data |= {"scores_spread": scores.spread, "metrics_spread": spreads, "seeds": by_seed}
    if first is not None:
        data["against_first"] = {metric: difference._asdict() for metric, difference in scores.against(first).items()}
    return data


def _scores_table(scores: SeedScores, folders: Mapping[int, Path]) -> Table:
    matrix, spread = scores.mean, scores.spread
    number = len(scores.by_seed)
    of_seeds = "" if number == 1 else f", mean ± standard deviation of {number} seeds"
    title = f"{matrix.metric.capitalize()} on each task{of_seeds}"
    table = Table("", *matrix.task_names, "samples/s", title=title)
    paces = [read_pace(folders[seed], matrix.task_names) for seed, matrix in scores.by_seed.items()]
    for after in matrix.recorded:
        rates = [pace.samples_per_second.iloc[after - 1] for pace in paces if 0 < after <= len(pace)]
        pairs = zip(matrix.scores[after], spread[after], strict=True)
        cells = ["-" if np.isnan(score) else Measured(score, own, 1).text() for score, own in pairs]
        rate = f"{np.mean(rates):,.0f}" if rates else "-"
        table.add_row(f"after {matrix.task_names[after - 1]}" if after else "before", *cells, rate)
    return table


def _metrics_table(scores: Mapping[str, SeedScores]) -> Table:
    table = Table("", *titled(scores), title="Metrics; over seeds mean ± deviation, for differences the 95 % interval")
    for name, cells in metric_rows(scores):
        table.add_row(name, *cells)
    return table
