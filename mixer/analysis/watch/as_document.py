"""A run as it stands, as plain data for scripts."""

import math
from typing import Any

from mixer.analysis.watch.watched_run import WatchedRun
from mixer.ledger.evaluated_losses import mean_loss, worst_loss


def as_document(run: WatchedRun) -> dict[str, Any]:
    """Writes what the terminal view shows.

    Args:
        run: The run, read.

    Returns:
        run, state, reason (what stopped it, else `None`), progress, seconds_left, clock (its newest row),
        loading_share, evaluated_at, eval_loss and eval_worst_loss (over all sets), and streams: one a stream, with
        what its newest row says, loss (mean over the last 50 steps), share (of their samples) and evaluation. Beside
        each loss and the gradient's norm `..._is_finite` tells one that is no number (false) from one that is not known
        (`None`).
    """
    gathered = run.gathered
    shares = gathered.shares()
    return {
        "run": run.folder,
        "state": run.state,
        "reason": run.reason,
        "progress": run.progress,
        "seconds_left": run.seconds_left(),
        "clock": {
            **gathered.clock,
            **{f"{name}_is_finite": is_finite for name, is_finite in gathered.is_finite.items()},
        },
        "loading_share": gathered.loading_share,
        "evaluated_at": gathered.evaluated_at,
        "eval_loss": mean_loss(gathered.evaluations, run.eval_weights),
        "eval_worst_loss": worst_loss(gathered.evaluations),
        "streams": [
            {
                **{key: value for key, value in stream.last.items() if key not in ("step", "count", "loss")},
                "loss": stream.recent_loss,
                "loss_is_finite": stream.is_finite,
                "share": shares[name],
                "evaluation": gathered.evaluations.get(name),
                "evaluation_is_finite": math.isfinite(gathered.evaluations[name])
                if name in gathered.evaluations
                else None,
            }
            for name, stream in gathered.streams.items()
        ],
    }
