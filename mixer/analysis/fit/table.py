"""A fit as tables."""

import math

import numpy as np
from rich.table import Table

from mixer.analysis.fit.fitted import FittedMixture


def share_table(fitted: FittedMixture) -> Table:
    """Makes a table of the mixture beside the best run and the uniform one.

    Args:
        fitted: What was found.

    Returns:
        The table, one row a stream, the objective below.
    """
    compared = {"best run": fitted.best_run}
    if fitted.uniform_runs:
        compared["uniform run"] = fitted.uniform_runs[0]
    table = Table(title=f"Best fixed mixture by {len(fitted.runs)} runs ({fitted.objective.name} loss)")
    table.add_column("stream")
    table.add_column("share", justify="right")
    table.add_column("shares of runs\nfrom … to", justify="right")
    for title, run in compared.items():
        table.add_column(f"{title}\n{fitted.runs[run]}", justify="right")
    least, most = fitted.mixtures.min(axis=0), fitted.mixtures.max(axis=0)
    for number, (name, share) in enumerate(fitted.weights.items()):
        others = [f"{fitted.mixtures[run, number]:.3f}" for run in compared.values()]
        table.add_row(name, f"{share:.3f}", f"{least[number]:.3f} … {most[number]:.3f}", *others)
    table.add_section()
    seen = [f"{fitted.left_out.seen[run]:.4f}" for run in compared.values()]
    expected = f"{fitted.expected_loss:.4f} ± {fitted.error:.4f}"
    table.add_row(f"{fitted.objective.name} loss", f"{expected}\n(expected)", "", *(f"{loss}\n(was)" for loss in seen))
    return table


def error_table(fitted: FittedMixture) -> Table:
    """Makes a table of how well each regression predicts runs that it was not fitted to (root mean square).

    Args:
        fitted: What was found.

    Returns:
        The table, one row a regression.
    """
    table = Table(title="Error on runs left out")
    table.add_column("regression")
    table.add_column("error", justify="right")
    for name, error in fitted.errors.items():
        table.add_row(f"{name} (taken)" if name == fitted.regressor else name, f"{error:.4f}")
    table.add_row("mean of the other runs", f"{fitted.constant_error:.4f}")
    return table


def summary(fitted: FittedMixture) -> list[str]:
    """Says what the fit is worth and where it looked.

    Args:
        fitted: What was found.

    Returns:
        Sentences.
    """
    correlation = fitted.rank_correlation
    spread = float(np.ptp(fitted.left_out.seen))
    order = (
        "predictions for runs left out have no order"
        if math.isnan(correlation)
        else f"the rank correlation of predictions for runs left out with what they had is {correlation:.2f}"
    )
    return [
        f"{fitted.regressor}: {order}; the runs lie {spread:.4f} apart.",
        "Searched: mixtures that the runs cover, the combinations of theirs; nothing is said of others.",
    ]
