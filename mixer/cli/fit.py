"""The command `mixer fit RUN ...`."""

from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from mixer.analysis.fit.fitted import FittedMixture
from mixer.analysis.fit.plot import write_plot
from mixer.analysis.fit.runs import RecordedRuns, fit_runs
from mixer.cli.command import Command, add_json
from mixer.cli.mixtures import OPTIONS, constraints_of, how_to_train
from mixer.policies.contract import UNITS
from mixer.recipe.recipe_files import mixing_of
from mixer.utils.console import console, print_json
from mixer.utils.files import write_json

_OPTIONS: dict[str, dict[str, Any]] = {
    "--loss": {
        "choices": ["evaluation", "train"],
        "default": "evaluation",
        "help": "Losses of the last evaluation, or of training over the last tenth of the steps.",
    },
    "--allow-different-budgets": {
        "action": "store_true",
        "help": "Also fit runs that differ in length or last evaluation, or stopped early.",
    },
    "--allow-different-recipes": {
        "action": "store_true",
        "help": "Also fit runs of mixer train whose recipes differ in more than mixture, seeds, length and reporting.",
    },
}


def fit() -> Command:
    """Find the best fixed mixture by a fit to finished runs."""
    parser = ArgumentParser(
        description="Finds the best fixed mixture by a fit to finished runs of other mixtures: data mixture as "
        "regression, after RegMix (arXiv 2407.01492). mixer.analysis.fit.fit_mixture takes arrays of other runs.",
        usage="mixer fit RUN RUN RUN ... [--objective average|worst|NAME=weight,...] [--output PATH] [--plot PATH] "
        "[--json] [--OPTION VALUE]",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("runs", nargs="+", type=str, help="Output folders of runs that differ in their mixture alone.")
    objective = (
        "What to minimise: losses of streams or other evaluation sets. Default: what the runs declared, or average."
    )
    add("--objective", type=str, metavar="average|worst|NAME=weight,...", help=objective)
    for option, arguments in {**OPTIONS, **_OPTIONS}.items():
        add(option, **arguments if "action" in arguments else {"type": str, **arguments})
    add("--unit", choices=UNITS, default="samples", help="Unit of the shares.")
    add("--output", type=str, metavar="PATH", help="Where to write the mixture (JSON).")
    add("--plot", type=str, metavar="PATH", help="Where to write plots of the fit (HTML).")
    add_json(parser)
    example = "mixer fit runs/a runs/b runs/c runs/d --objective worst --output weights.json"
    return Command(parser, _run, example=example)


def _run(config: Namespace) -> None:
    paths, allowed = (
        [Path(run) for run in config.runs],
        (config.allow_different_budgets, config.allow_different_recipes),
    )
    recorded = RecordedRuns(paths, config.unit, config.loss, *allowed)
    fitted = fit_runs(recorded, constraints_of(config, recorded.streams), config.objective)
    mixing = mixing_of(fitted.weights, config.unit)
    if config.output is not None:
        write_json(Path(config.output), mixing)
    if config.plot is not None:
        write_plot(fitted, Path(config.plot))
    if config.json:
        print_json({**fitted.document(), "mixing": mixing, "unit": config.unit, "notes": recorded.notes})
        return
    show(fitted, recorded.notes)
    print(how_to_train(mixing))  # noqa: T201 (not wrapped, so that it can be copied)


def show(fitted: FittedMixture, notes: list[str]) -> None:
    """Prints a fit."""
    screen = console()
    screen.print(fitted.table())
    for sentence in (*notes, *fitted.sentences()):
        screen.print(sentence, markup=False, highlight=False)
