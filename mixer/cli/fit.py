"""`mixer fit RUN ...`."""

import json
import shlex
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from mixer.analysis.fit.fitted import FittedMixture
from mixer.analysis.fit.mixture import fit_mixture
from mixer.analysis.fit.regressors import AUTO, REGRESSORS
from mixer.analysis.fit.runs import read_recorded_runs
from mixer.analysis.fit.table import error_table, share_table, summary
from mixer.cli.command import Command
from mixer.recipe.files import mixing_of
from mixer.utils.console import add_json, console, print_json
from mixer.utils.files import write_json


def fit() -> Command:
    """Gives the command that fits losses of runs to their mixtures.

    Returns:
        The command.
    """
    parser = ArgumentParser(
        description="Finds the best fixed mixture by a fit to finished runs of other mixtures: data mixture as "
        "regression, after RegMix (arXiv 2407.01492).",
        usage="mixer fit RUN RUN RUN ... [--objective average|worst|NAME=weight,...] [--output PATH] [--json] "
        "[--OPTION VALUE]",
        allow_abbrev=False,
    )
    parser.add_argument("runs", nargs="+", type=str, help="Output folders of runs that differ in their mixture alone.")
    _add_what_is_fitted(parser)
    _add_what_is_allowed(parser)
    _add_search(parser)
    parser.add_argument("--output", type=str, default=None, metavar="PATH", help="Where to write the mixture (JSON).")
    add_json(parser)
    example = "mixer fit runs/a runs/b runs/c runs/d --objective worst --output weights.json"
    return Command(parser, _run, "find the best fixed mixture by finished runs of others", example=example)


def _add_what_is_fitted(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add(
        "--objective",
        type=str,
        default="average",
        metavar="average|worst|NAME=weight,...",
        help="What is made small, of the losses of streams. A NAME may be any evaluation set's.",
    )
    add(
        "--loss",
        choices=["evaluation", "train"],
        default="evaluation",
        help="Losses of the last evaluation, or those of training, over the last tenth of the steps.",
    )
    add("--unit", choices=["samples", "tokens"], default="samples", help="What shares are of.")
    add(
        "--regressor",
        choices=[AUTO, *REGRESSORS],
        default=AUTO,
        help="The regression; auto takes the one of all but lightgbm with the least error on runs left out.",
    )


def _add_what_is_allowed(parser: ArgumentParser) -> None:
    parser.add_argument(
        "--allow-different-budgets",
        action="store_true",
        help="Fit runs too that trained or were evaluated on more or less than the others, stopped before their "
        "budget, or were evaluated last before their end.",
    )
    parser.add_argument(
        "--allow-different-recipes",
        action="store_true",
        help="Fit runs of mixer train too whose recipes differ in more than mixture, seeds, length and what is "
        "reported.",
    )


def _add_search(parser: ArgumentParser) -> None:
    add = parser.add_argument
    add("--least-share", type=float, default=0.0, metavar="SHARE", help="Least share of every stream.")
    add("--num-candidates", type=int, default=100_000, metavar="N", help="Mixtures tried.")
    add("--num-best", type=int, default=100, metavar="N", help="How many of the best are averaged.")
    add("--seed", type=int, default=0, help="Seed of the mixtures tried.")


def _run(config: Namespace) -> None:
    recorded = read_recorded_runs(
        [Path(run) for run in config.runs],
        config.unit,
        config.loss,
        config.allow_different_budgets,
        config.allow_different_recipes,
    )
    fitted = fit_mixture(
        recorded.mixtures,
        recorded.losses,
        config.objective,
        streams=recorded.streams,
        loss_names=recorded.loss_names,
        runs=recorded.runs,
        groups=recorded.groups,
        regressor=config.regressor,
        least_share=config.least_share,
        num_candidates=config.num_candidates,
        num_best=config.num_best,
        seed=config.seed,
    )
    mixing = mixing_of(fitted.weights, config.unit)
    if config.output is not None:
        write_json(Path(config.output), mixing)
    if config.json:
        print_json({**_document(fitted), "mixing": mixing, "unit": config.unit, "notes": recorded.notes})
        return
    _print(fitted, recorded.notes)
    # Not wrapped, so that it can be copied.
    print("To train on it:", _usage(config.output, mixing), sep="\n")  # noqa: T201


def _document(fitted: FittedMixture) -> dict[str, Any]:
    losses = fitted.left_out.seen.tolist()
    return {
        "weights": fitted.weights,
        "objective": fitted.objective.name,
        "expected_loss": fitted.expected_loss,
        "expected_losses": fitted.expected_losses,
        "error": fitted.error,
        "rank_correlation": fitted.rank_correlation,
        "regressor": fitted.regressor,
        "errors": fitted.errors,
        "constant_error": fitted.constant_error,
        "best_run": fitted.runs[fitted.best_run],
        "runs": [
            {"name": name, "shares": dict(zip(fitted.streams, shares, strict=True)), "loss": loss}
            for name, shares, loss in zip(fitted.runs, fitted.mixtures.tolist(), losses, strict=True)
        ],
        "warnings": fitted.warnings,
    }


def _print(fitted: FittedMixture, notes: Sequence[str]) -> None:
    screen = console()
    screen.print(share_table(fitted))
    screen.print(error_table(fitted))
    for sentence in (*summary(fitted), *notes):
        screen.print(sentence, markup=False, highlight=False)
    for warning in fitted.warnings:
        screen.print(f"Warning: {warning}", markup=False, highlight=False)


def _usage(output: str | None, mixing: dict[str, Any]) -> str:
    written = shlex.quote(json.dumps(mixing)) if output is None else f'"$(cat {shlex.quote(output)})"'
    return f"  mixer train RECIPE.yaml --mixing {written}"
