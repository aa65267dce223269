"""A whole run planned: plan after plan, as the trainer asks for them."""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from mixer.analysis.simulate.assumed import EXAMPLE, AssumedLosses
from mixer.analysis.simulate.parts import Parts, parts_of
from mixer.analysis.simulate.planned_run import PlannedRun
from mixer.analysis.simulate.recorded import RecordedLosses
from mixer.analysis.simulate.seen import PLANNED, Nothing, Source, needs_of
from mixer.analysis.simulate.simulated import Simulated
from mixer.analysis.simulate.summing_up import summed_up
from mixer.ledger.recorded_run import RecordedRun
from mixer.recipe.recipe import Recipe


def simulate(
    recipe: Recipe,
    num_ranks: int = 1,
    losses: str | Path | None = None,
    assumed_losses: Mapping[str, Mapping[str, float]] | None = None,
    output: str | Path | None = None,
) -> Simulated:
    """Plans a whole run without a model.

    Args:
        recipe: The recipe.
        num_ranks: Number of processes of the launch.
        losses: The output folder of a run whose losses, and gradients where it measured them, an adaptive policy sees.
        assumed_losses: In their place, courses of losses by stream, and of `default` for all; see `AssumedLosses`.
        output: A folder for a ledger of the simulation; `None` writes none.

    Returns:
        What the run comes to.

    Raises:
        ValueError: If the recipe's run could not be planned; if something has to be observed that was not given; or if
            the folder holds a run that is no simulation.
    """
    parts = parts_of(recipe, num_ranks)
    source = _source(parts, losses, assumed_losses)
    started = time.perf_counter()
    run = PlannedRun(parts, source, output)
    run.plan_all()
    return summed_up(run, num_ranks, time.perf_counter() - started)


def _source(parts: Parts, losses: Any, assumed: Mapping[str, Mapping[str, float]] | None) -> Source:
    """Chooses where observations come from; refuses what cannot be had."""
    policy, schedule, names = parts.mixing.policy, parts.mixing.schedule, parts.mixing.names
    needs = needs_of(policy, schedule)
    if losses is not None and assumed is not None:
        raise ValueError("losses and assumed_losses both say what is observed: give one of the two.")
    if losses is not None:
        source: RecordedLosses | AssumedLosses = RecordedLosses(RecordedRun(losses), names, policy)
    elif assumed is not None:
        source = AssumedLosses(names, assumed)
    elif not needs:
        return Nothing()
    else:
        raise ValueError(
            f"{_who(parts)} goes by {sorted(needs)}, which only a model shows. Give the folder of a run that recorded "
            f"them (--losses RUN), or assume losses (--assumed_losses '{{}}', or {EXAMPLE}); or simulate the run with "
            "mixing: Uniform."
        )
    if missing := sorted(needs - source.gives):
        raise ValueError(
            f"{_who(parts)} goes by {missing}, which is not in what was given. Give the folder of a run that recorded "
            "them, as one with these rules does: --losses RUN."
        )
    return source


def _who(parts: Parts) -> str:
    policy, schedule = parts.mixing.policy, parts.mixing.schedule
    who = [f"mixing={policy.name}"] if policy.needs else []
    who += [f"batch_size={schedule.name}"] if schedule.needs - PLANNED else []
    return " with ".join(who)
