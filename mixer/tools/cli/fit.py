"""The command `mixer fit RUN ...`."""

from argparse import SUPPRESS
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from mixer.policies.contract import UNITS
from mixer.tools.analysis.fit import fit_mixture
from mixer.tools.analysis.fit.fitted import FittedMixture
from mixer.tools.analysis.fit.runs import RecordedRuns, fit_runs
from mixer.tools.analysis.fit.table import SUFFIXES, RunTable
from mixer.tools.cli.command import Command, add_json
from mixer.tools.cli.mixtures import OPTIONS, constraints_of, how_to_train
from mixer.tools.console import console, print_json
from mixer.tools.recipe.recipe_files import mixing_of
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import write_json

_OF_TABLES: dict[str, dict[str, Any]] = {
    "--shares": {
        "type": str,
        "metavar": "PATTERN",
        "help": "Columns of shares; * is the source's name. Default: share/*.",
    },
    "--losses": {"metavar": "PATTERN", "help": "Columns of losses in a table. Default: loss/*."},
    "--size": {"metavar": "COLUMN", "help": "Column of the model's size: smaller ones inform, the largest decides."},
    "--greater_is_better": {"action": "store_true", "help": "In the table's metrics, higher is better."},
}
_BUDGETS = "Also fit runs that differ in length or last evaluation, or stopped early."
_RECIPES = "Also fit runs of mixer train whose recipes differ in more than mixture, seeds, length and reporting."
_OF_FOLDERS: dict[str, dict[str, Any]] = {
    "--allow-different-budgets": {"action": "store_true", "help": _BUDGETS},
    "--allow-different-recipes": {"action": "store_true", "help": _RECIPES},
}


def fit() -> Command:
    """Find the best fixed mixture by a fit to finished runs."""
    parser = ArgumentParser(
        description="Finds the best fixed mixture by a fit to finished runs of other mixtures: data mixture as "
        "regression, after RegMix (arXiv 2407.01492). Runs are folders of this toolkit, or a table of shares and "
        "losses (CSV, Parquet) of any other.",
        usage="mixer fit RUN RUN RUN ... [--objective average|worst|NAME=weight,...] [--output PATH] "
        "[--json] [--OPTION VALUE]",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("runs", nargs="+", type=str, help="Output folders of runs that differ in their mixture alone; or a table.")
    objective = (
        "What to minimise: losses of streams or other evaluation sets. Default: what the runs declared, or average."
    )
    add("--objective", type=str, metavar="average|worst|NAME=weight,...", help=objective)
    for option, arguments in OPTIONS.items():
        add(option, **{"type": str, **arguments})
    for option, arguments in {**_OF_TABLES, **_OF_FOLDERS}.items():
        add(option, default=SUPPRESS, **arguments)
    add("--unit", choices=UNITS, default="samples", help="Unit of the shares.")
    add("--output", type=str, metavar="PATH", help="Where to write the mixture (JSON).")
    add_json(parser)
    example = "mixer fit runs/a runs/b runs/c runs/d --objective worst --output weights.json"
    return Command(parser, _run, example=example)


def _run(config: Namespace) -> None:
    recorded = _recorded(config)
    constraints = constraints_of(config, recorded.streams)
    if isinstance(recorded, RecordedRuns):
        fitted = fit_runs(recorded, constraints, config.objective)
    else:
        fitted = fit_mixture(
            recorded.mixtures,
            recorded.losses,
            config.objective or "average",
            **{name: getattr(recorded, name) for name in ("streams", "runs", "loss_names", "sizes")},
            constraints=constraints,
            **_given(config, "greater_is_better"),
        )
    mixing = mixing_of(fitted.weights, config.unit)
    if config.output is not None:
        write_json(Path(config.output), mixing)
    if config.json:
        print_json({**fitted.document(), "mixing": mixing, "unit": config.unit, "notes": recorded.notes})
        return
    show(fitted, recorded.notes)
    if not fitted.explains_nothing:
        print(how_to_train(mixing))  # noqa: T201 (not wrapped, so that it can be copied)


def show(fitted: FittedMixture, notes: list[str]) -> None:
    """Prints a fit."""
    screen = console()
    screen.print(fitted.table())
    for sentence in (*notes, *fitted.sentences()):
        screen.print(sentence, markup=False, highlight=False)


def _recorded(config: Namespace) -> RunTable | RecordedRuns:
    first, *others = paths = [Path(run) for run in config.runs]
    is_table = first.is_file()
    if is_table and (others or first.suffix.lower() not in SUFFIXES):
        raise InvalidValueError(option="runs", expected=f"folders of runs, or one {' or '.join(SUFFIXES)}", found=paths)
    kind, unread = ("folders of runs", _OF_FOLDERS) if is_table else ("tables", _OF_TABLES)
    if given := [option for option in unread if _name(option) in config]:
        raise InvalidValueError.about(", ".join(given), f"is for {kind} only, and runs names none.")
    if is_table:
        return RunTable(first, **_given(config, "shares", "losses", "size"))
    return RecordedRuns(paths, config.unit, **_given(config, *map(_name, _OF_FOLDERS)))


def _name(option: str) -> str:
    return option.removeprefix("--").replace("-", "_")


def _given(config: Namespace, *names: str) -> dict[str, Any]:
    """Picks the options that were given: the others have the defaults of the class that reads the runs."""
    return {name: config[name] for name in names if name in config}
