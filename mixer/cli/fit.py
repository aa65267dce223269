"""The command `mixer fit RUN ...`."""

import json
import shlex
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from mixer.analysis.fit.fitted import FittedMixture, error_table, share_table, summary
from mixer.analysis.fit.mixture import AUTO, fit_mixture
from mixer.analysis.fit.regressors import REGRESSORS
from mixer.analysis.fit.runs import RecordedRuns
from mixer.cli.command import Command, add_json
from mixer.recipe.files import mixing_of
from mixer.utils.console import console, print_json
from mixer.utils.files import write_json

_FIGURES = (
    *("weights", "objective", "expected_loss", "expected_losses", "error", "rank_correlation", "regressor", "errors"),
    *("constant_error", "warnings"),
)


def fit() -> Command:
    """Find the best fixed mixture by a fit to finished runs."""
    parser = ArgumentParser(
        description="Finds the best fixed mixture by a fit to finished runs of other mixtures: data mixture as "
        "regression, after RegMix (arXiv 2407.01492), with the exponential law of Data Mixing Laws (arXiv 2403.16952).",
        usage="mixer fit RUN RUN RUN ... [--objective average|worst|NAME=weight,...] [--output PATH] [--json] "
        "[--OPTION VALUE]",
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("runs", nargs="+", type=str, help="Output folders of runs that differ in their mixture alone.")
    objective = (
        "What to minimise, made of the losses of streams; a NAME may also be another evaluation set. Default: the "
    )
    objective += "objective that the runs declared, else the average."
    add("--objective", type=str, metavar="average|worst|NAME=weight,...", help=objective)
    loss = "Losses of the last evaluation, or of training over the last tenth of the steps."
    add("--loss", choices=["evaluation", "train"], default="evaluation", help=loss)
    add("--unit", choices=["samples", "tokens"], default="samples", help="Unit of the shares.")
    regressor = "The regression; auto takes the one with the least error on runs left out."
    add("--regressor", choices=[AUTO, *REGRESSORS], default=AUTO, help=regressor)
    add("--least-share", type=float, default=0.0, metavar="SHARE", help="Least share of every stream.")
    budgets = "Also fit runs that differ in their length or last evaluation, or stopped early."
    add("--allow-different-budgets", action="store_true", help=budgets)
    recipes = "Also fit runs of mixer train whose recipes differ in more than mixture, seeds, length and reporting."
    add("--allow-different-recipes", action="store_true", help=recipes)
    add("--output", type=str, metavar="PATH", help="Where to write the mixture (JSON).")
    add_json(parser)
    example = "mixer fit runs/a runs/b runs/c runs/d --objective worst --output weights.json"
    return Command(parser, _run, example=example)


def _run(config: Namespace) -> None:
    allowed = config.allow_different_budgets, config.allow_different_recipes
    recorded = RecordedRuns([Path(run) for run in config.runs], config.unit, config.loss, *allowed)
    fitted = fit_mixture(
        recorded.mixtures,
        recorded.losses,
        objective=config.objective or recorded.objective or "average",
        regressor=config.regressor,
        least_share=config.least_share,
        streams=recorded.streams,
        runs=recorded.runs,
        loss_names=recorded.loss_names,
        groups=recorded.groups,
    )
    mixing = mixing_of(fitted.weights, config.unit)
    if config.output is not None:
        write_json(Path(config.output), mixing)
    if config.json:
        print_json({**_document(fitted), "mixing": mixing, "unit": config.unit, "notes": recorded.notes})
        return
    screen = console()
    screen.print(share_table(fitted))
    screen.print(error_table(fitted))
    for sentence in (*summary(fitted), *recorded.notes, *(f"Warning: {warning}" for warning in fitted.warnings)):
        screen.print(sentence, markup=False, highlight=False)
    value = shlex.quote(json.dumps(mixing)) if config.output is None else f'"$(cat {shlex.quote(config.output)})"'
    # Not wrapped, so that it can be copied.
    print(f"To train on it:\n  mixer train RECIPE.yaml --mixing {value}")  # noqa: T201


def _document(fitted: FittedMixture) -> dict[str, Any]:
    runs = zip(fitted.runs, fitted.mixtures.tolist(), fitted.left_out.seen.tolist(), strict=True)
    return {
        **{name: getattr(fitted, name) for name in _FIGURES},
        "best_run": fitted.runs[fitted.best_run],
        "runs": [
            {"name": name, "shares": dict(zip(fitted.streams, shares, strict=True)), "loss": loss}
            for name, shares, loss in runs
        ],
    }
