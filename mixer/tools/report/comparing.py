"""Compares runs: which is better, by how much beside the spread between seeds, and in which streams."""

import math
import re
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import pandas as pd

from mixer.policies.contract import UNITS, Unit
from mixer.policies.objective import Objective
from mixer.tools.records.comparison import judged_apart, unlike_amounts
from mixer.tools.records.run import Run
from mixer.tools.records.runs import stream_names
from mixer.tools.report.judging import Measure, shares_of
from mixer.tools.report.plots.losses import smoothed
from mixer.utils.statistics import Measured, bound, over_seeds
from mixer.utils.text import listed

# What another seed changes in the description of a run.
_OF_A_SEED = ("data_seed", "loss_units", "version", "world_size")
_SEED_IN_NAME = re.compile(r"[-_./ ]*(seed)?[-_ ]*\d+$")
_MOST_STREAMS = 12  # in the table of differences on the page


class Configuration(NamedTuple):
    """Runs that differ in their seed alone, and their common name."""

    name: str
    runs: list[Run]

    def measured(self, value: Callable[[Run], float]) -> Measured:
        """Gives the mean of a figure and its spread over the seeds."""
        return over_seeds([float(value(run)) for run in self.runs])


def configurations(runs: Sequence[Run]) -> list[Configuration]:
    """Groups runs that differ in their seed alone, in order of first appearance."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        own = {name: value for name, value in run.description.items() if name not in _OF_A_SEED}
        rate = run.clock["learning_rate"].max()
        groups.setdefault(f"{own}{rate}" if own and _seed(run) is not None else run.name, []).append(run)
    found = []
    for members in groups.values():
        is_repeated = len({_seed(run) for run in members}) == len(members)  # else something else differs, unrecorded
        found += [members] if is_repeated else [[run] for run in members]
    names = [_common_name(members) for members in found]
    return [
        Configuration(name if names.count(name) == 1 else members[0].name, members)
        for name, members in zip(names, found, strict=True)
    ]


def _seed(run: Run) -> Any:
    return run.description.get("data_seed")


def _common_name(runs: Sequence[Run]) -> str:
    """Returns the name of a run, or that of several without the number of the seed, if that is the same."""
    names = {_SEED_IN_NAME.sub("", run.name) for run in runs}
    return names.pop() if len(runs) > 1 and len(names) == 1 and "" not in names else runs[0].name


def ranked(found: Sequence[Configuration], measure: Measure | None) -> list[tuple[Configuration, Measured]]:
    """Orders the configurations whose measure is known, the best first."""
    results = [] if measure is None else [(config, config.measured(measure.of)) for config in found]
    is_greater = measure is not None and measure.greater_is_better
    return sorted((pair for pair in results if pair[1].num_runs), key=lambda pair: pair[1].mean, reverse=is_greater)


def verdict(best_first: Sequence[tuple[Configuration, Measured]], measure: Measure) -> list[str]:
    """Says which configuration is best, and whether seeds alone may make its lead."""
    ends = [f"{result.text()} in {config.name}{_seeds(result)}" for config, result in best_first]
    subject = f"{measure.words[0].upper()}{measure.words[1:]}"
    if len(ends) == 1:
        return [f"{subject} ended at {ends[0]}."]
    direction = "greater" if measure.greater_is_better else "lower"
    (best, of_best), (other, of_other), *_ = best_first
    lead = _lead(f"{subject} ended", f"{direction} in {best.name} than in {other.name}", of_best, of_other)
    is_repeated = not math.isnan(bound(of_best, of_other))
    seeds = [] if is_repeated else ["Another seed changes the result too, often by 1 % or more: repeat both."]
    return [lead, f"It ended at {listed(ends)}; {direction} is better.", *seeds]


def unknown(runs: Sequence[Run]) -> str:
    """Says why runs cannot be judged."""
    if not any(run.evaluations for run in runs):
        return f"{'The run was' if len(runs) == 1 else 'The runs were'} not evaluated."
    return (
        "The last evaluation cannot be judged: a loss was not finite, or a target of the objective was not evaluated."
    )


def _lead(ended: str, compared: str, best: Measured, other: Measured) -> str:
    """Judges a lead by a t-test, in which seeds make the same spread for both."""
    lead, spread = abs(other.mean - best.mean), bound(best, other)
    share = f" ({lead / abs(other.mean):.1%})" if other.mean else ""
    if lead == 0.0:
        return f"{ended} not {compared}."
    if math.isnan(spread):
        return f"{ended} {lead:.3f}{share} {compared} (one seed each)."
    if lead > spread:
        return f"{ended} {lead:.3f} ± {spread:.3f}{share} {compared} (95 % over seeds)."
    return f"{ended} {lead:.3f}{share} {compared}. Seeds alone may make a difference of {spread:.3f} (95 %): add seeds."


def _seeds(result: Measured) -> str:
    return f" ({result.num_runs} seeds)" if result.num_runs > 1 else ""


def _at_end(column: str) -> Callable[[Run], float]:
    """Reads a column of a run's clock at its end."""
    return lambda run: float(run.clock[column].iloc[-1])


def unequal(found: Sequence[Configuration]) -> list[str]:
    """Warns that runs did not see the same amount of data, or were not judged by the same rows."""
    texts = []
    for unit in ("samples", "tokens"):
        amounts = {config.name: config.measured(_at_end(unit)).mean for config in found}
        texts.append(unlike_amounts(amounts, unit))
    development = {config.name: config.runs[0].description.get("development_rows") or {} for config in found}
    return [text for text in (*texts, judged_apart(development)) if text]


def compare(found: Sequence[Configuration], measure: Measure | None) -> pd.DataFrame:
    """Tabulates the measure by configuration, the best first; see `Answer`."""
    if measure is None:
        return pd.DataFrame()
    results = [config.measured(measure.of) for config in found]
    base = results[0].mean
    columns = {
        "run": [config.name for config in found],
        "runs": [len(config.runs) for config in found],
        "value": [result.mean for result in results],
        "spread": [result.spread for result in results],
        "difference": [result.mean - base for result in results],
        "change": [result.mean / base - 1.0 if base else math.nan for result in results],
        "samples": [int(config.measured(_at_end("samples")).mean) for config in found],
    }
    return pd.DataFrame(columns).sort_values("value", ascending=not measure.greater_is_better, kind="stable")


def shown_comparison(table: pd.DataFrame, base: str) -> list[dict[str, str]]:
    """Lays the comparison out.

    Args:
        table: The comparison, the best first; see `Answer`.
        base: Name of the configuration that the others are compared with.
    """
    shown = []
    for row in table.to_dict("records"):
        change = "" if math.isnan(row["change"]) else f" ({row['change']:+.1%})"
        shown.append(
            {
                "Best first": row["run"],
                "Seeds": str(row["runs"]),
                "Last value": Measured(row["value"], row["spread"], row["runs"]).text(),
                f"Compared with {base}": "" if row["run"] == base else f"{row['difference']:+.3f}{change}",
                "Samples": f"{row['samples']:,}",
            }
        )
    return shown


def differences(found: Sequence[Configuration], objective: Objective | None) -> pd.DataFrame:
    """Tabulates the last values of each stream by configuration, the objective's targets first; see `Answer`."""
    runs = [run for config in found for run in config.runs]
    names = list(dict.fromkeys([*stream_names(runs), *(name for run in runs for name in run.evaluations)]))
    targets = () if objective is None else objective.names
    rows = []
    units = [unit for unit in UNITS[1:] if any(run.unit == unit for run in runs)]
    measures = {run.name: {name: _measures(run, name, units) for name in names} for run in runs}
    for name in sorted(names, key=lambda name: name not in targets):
        kinds = dict.fromkeys(kind for run in runs for kind in measures[run.name][name])
        for kind in kinds:
            results = [
                over_seeds([measures[run.name][name].get(kind, math.nan) for run in config.runs]) for config in found
            ]
            rows += [
                {"stream": name, "measure": kind, "run": config.name, "value": result.mean, "spread": result.spread}
                | {"difference": result.mean - results[0].mean}
                for config, result in zip(found, results, strict=True)
            ]
    return pd.DataFrame(rows)


def _measures(run: Run, name: str, units: Sequence[Unit]) -> dict[str, float]:
    """Returns the last values of a stream: validation loss and metrics, else the training loss; and its share."""
    values: dict[str, float] = {}
    if name in run.evaluations:
        values["validation loss"] = float(run.evaluations[name]["loss"].iloc[-1])
    elif name in run.streams:
        values["training loss"] = float(smoothed(run.streams[name]).iloc[-1])
    for metric, own in run.metrics[name].groupby("metric", sort=False) if name in run.metrics else ():
        values[str(metric)] = float(own["value"].iloc[-1])
    if name not in run.streams:
        return values
    shares = {"share of samples": shares_of(run)[name]}
    return values | shares | {f"share of {unit}": shares_of(run, unit)[name] for unit in units}


def shown_differences(table: pd.DataFrame, best_first: Sequence[str] = ()) -> list[dict[str, str]]:
    """Lays the differences out: a row for each stream and measure, a column for each configuration.

    Args:
        table: The differences; see `Answer`. Of many streams those stay in which the configurations differ most.
        best_first: The configurations in the order of their columns; empty for that of the table.
    """
    if table.empty:
        return []
    largest = table["difference"].abs().groupby(table["stream"]).max().fillna(0.0).nlargest(_MOST_STREAMS)
    rows, columns = [], best_first or list(dict.fromkeys(table["run"]))
    for (name, measure), own in table[table["stream"].isin(largest.index)].groupby(["stream", "measure"], sort=False):
        form = "{:.1%}" if str(measure).startswith("share of") else "{:.3f}"
        base = own["run"].iloc[0]
        texts = {row["run"]: _shown(row, form, row["run"] != base) for row in own.to_dict("records")}
        rows.append({"stream": str(name), "measure": str(measure), **{run: texts[run] for run in columns}})
    if (left_out := table["stream"].nunique() - len(largest)) > 0:
        rows.append({"stream": f"{left_out} more, with smaller differences"})
    return rows


def _shown(row: dict[Hashable, Any], form: str, is_compared: bool) -> str:
    text = Measured(row["value"], row["spread"], 1).text(form)
    return f"{text} ({form.replace(':', ':+').format(row['difference'])})" if is_compared else text
