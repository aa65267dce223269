"""The tables of `benchmarks.quality`, in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.presenting import markdown
from benchmarks.quality.policies import AUTO, MOST_SIMILAR, UNIFORM
from benchmarks.quality.report import BEST, LEAST_HEADROOM

Summaries = Mapping[str, Mapping[str, Any]]  # by scenario, what `summarise` gave

_MUCH_HEADROOM = 5.0  # per cent, from which on samples to uniform's result are looked at
_LEAST_EXCESS = 1.0  # points over a bound, from which on it is shown


def report(title: str, summaries: Summaries) -> str:
    """Writes the tables of one model size.

    Args:
        title: The heading.
        summaries: By scenario, what `summarise` gave.

    Returns:
        Markdown: noise and headroom, the policies in short, their objectives, each run, and shares of the headroom.
    """
    tables = (_headroom, _in_short, _objectives, _each_run, _shares, _counted)
    parts = [f"### {title}", *(table_of(summaries) for table_of in tables)]
    return "\n\n".join(part for part in parts if part) + "\n"


def headroom(summary: Mapping[str, Any]) -> float:
    """Gives the headroom of a scenario.

    Args:
        summary: What `summarise` gave.

    Returns:
        By how many per cent the best fixed mixture is better than the uniform one; NaN if it is not known.
    """
    return -float(summary["policies"][BEST]["over_uniform"]["mean"]) if BEST in summary["policies"] else float("nan")


def by_kind(summaries: Summaries, kinds: Mapping[str, str]) -> str:
    """Sums up scenarios of a kind; a policy that was not run on all of them is left out.

    Args:
        summaries: By scenario, what `summarise` gave.
        kinds: The kinds of scenarios.

    Returns:
        A table in Markdown: means over the scenarios, with the least and the greatest, and the worst single run.
    """
    found = [
        {"kind": kind, "scenario": name, "policy": policy, "mean": row["over_uniform"]["mean"], "runs": _most(row, own)}
        for name, kind in kinds.items()
        if (own := summaries.get(name))
        for policy, row in own["policies"].items()
    ]
    drawn, rows = pd.DataFrame(found), []
    names = sorted(_names(summaries), key=lambda name: (name != AUTO, name != MOST_SIMILAR))
    for kind, part in [*drawn.groupby("kind"), ("all", drawn)] if found else ():
        rows.append([str(kind), str(num_scenarios := part["scenario"].nunique())])
        for policy in (*names, BEST):
            means, runs = (part[part["policy"] == policy][column] for column in ("mean", "runs"))
            spread = f"{means.min():+.1f} to {means.max():+.1f}; {runs.max():+.1f})" if len(means) else ""
            rows[-1].append(f"{means.mean():+.1f} ({spread}" if len(means) == num_scenarios else "")
    title = "What was drawn: per cent over uniform mixing, mean (least to most of scenarios' means; worst single run)"
    return table(title, ["what was drawn", "scenarios", *(f"`{name}`" for name in (*names, BEST))], rows)


def _runs(row: Mapping[str, Any], summary: Mapping[str, Any]) -> list[float]:
    """Gives how far each run is above uniform mixing on its seed, in per cent."""
    own, base = row["objective"], summary["policies"][UNIFORM]["objective"]
    return [100.0 * (own[seed] - base[seed]) / abs(base[seed]) for seed in sorted(own.keys() & base.keys())]


def _most(row: Mapping[str, Any], summary: Mapping[str, Any]) -> float:
    return max(_runs(row, summary))


def _headroom(summaries: Summaries) -> str:
    rows = []
    for name, summary in summaries.items():
        best = summary["policies"].get(BEST)
        cells = [f"{summary['spread']:.2f}" if np.isfinite(summary["spread"]) else "", "", "", ""]
        if best is not None:
            shares = ", ".join(f"{stream} {share:.2f}" for stream, share in best["shares"].items())
            figure = {**best["over_uniform"], "mean": headroom(summary)}
            cells[1:] = [interval(figure), _samples(best), shares]
        rows.append([name, *cells])
    heads = ["scenario", "noise %", "headroom %", "samples", "best fixed mixture"]
    return table("Noise (deviation of runs of nearly the same mixture) and headroom", heads, rows)


def _in_short(summaries: Summaries) -> str:
    rows = []
    for name in _names(summaries):
        there = {scenario: summary["policies"].get(name) for scenario, summary in summaries.items()}
        own = {scenario: row for scenario, row in there.items() if row is not None}
        shares = [100.0 * row["share"]["mean"] for row in own.values() if row.get("share")]
        samples = [row["samples"] for scenario, row in own.items() if headroom(summaries[scenario]) >= _MUCH_HEADROOM]
        worst = max(own, key=lambda scenario: own[scenario]["over_uniform"]["mean"])
        cells = [f"{np.mean(shares):.0f}", f"{min(shares):.0f}"] if shares else ["", ""]
        cells += [_part(np.median(samples)), _part(max(samples))] if samples else ["", ""]
        cells.append(f"{own[worst]['over_uniform']['mean']:+.1f} ({worst})")
        cells += [f"{max(row['worst']['mean'] for row in own.values()):+.1f}"]
        times = [row["time"] for row in own.values() if np.isfinite(row["time"])]
        cells.append(f"{np.median(times):.2f}" if times else "")
        rows.append((-np.mean(shares) if shares else 0.0, [f"`{name}`", *cells]))
    heads = ["policy", "headroom captured %", "least", "samples", "most", "worst case %", "worst target %", "time"]
    return table("In short", heads, [row for _, row in sorted(rows, key=lambda row: row[0])])


def _objectives(summaries: Summaries) -> str:
    with_accuracy = [
        name for name, own in summaries.items() if np.isfinite(own["policies"][UNIFORM]["accuracy"]["mean"])
    ]
    rows = []
    for name in (*_names(summaries), BEST):
        cells = []
        for summary in summaries.values():
            row = summary["policies"].get(name)
            over = f", bound {row['excess']:+.1f}" if row and row["excess"] >= _LEAST_EXCESS else ""
            cells.append(interval(row["over_uniform"], "+.1f") + over if row else "")
        for scenario in with_accuracy:
            row = summaries[scenario]["policies"].get(name)
            cells.append(interval(row["accuracy"], "+.1f") if row else "")
        if any(cells):
            rows.append([f"`{name}`", *cells])
    heads = ["policy", *summaries, *(f"{name}, accuracy" for name in with_accuracy)]
    return table("Objective over that of uniform mixing, per cent (accuracy: points)", heads, rows)


def _each_run(summaries: Summaries) -> str:
    rows = []
    for scenario, summary in summaries.items():
        for name in (own for own in (*_names(summaries), BEST) if own in summary["policies"]):
            runs = _runs(summary["policies"][name], summary)
            rows.append([scenario, f"`{name}`", ", ".join(f"{own:+.1f}" for own in runs), f"{max(runs):+.1f}"])
    return table("Each run over uniform mixing, per cent, by seed", ["scenario", "policy", "runs", "worst"], rows)


def _shares(summaries: Summaries) -> str:
    wide = {name: own for name, own in summaries.items() if headroom(own) >= LEAST_HEADROOM}
    rows = []
    for name in _names(summaries) if wide else ():
        cells = []
        for summary in wide.values():
            row = summary["policies"].get(name)
            percent = {kind: 100.0 * value for kind, value in row["share"].items()} if row else {}
            cells.append(f"{interval(percent, '.0f')}; {_samples(row)}" if row else "")
        rows.append([f"`{name}`", *cells])
    heads = ["policy", *(f"{name} ({headroom(own):.1f} %)" for name, own in wide.items())]
    return table("Share of headroom captured, per cent; samples to uniform's result", heads, rows)


def _counted(summaries: Summaries) -> str:
    rows = []
    for name in (UNIFORM, *_names(summaries)):
        cells = []
        for summary in summaries.values():
            row = summary["policies"].get(name)
            right = [f"{target} {100.0 * share:.0f} %" for target, share in ((row or {}).get("exact") or {}).items()]
            run = [f"{row['tokens'] / 1000.0:.0f}k, {row['minutes']:.1f} min"] if row and row["tokens"] else []
            cells.append("; ".join([*right, *run]))
        rows.append([f"`{name}`", *cells])
    has_answers = any(row and row.get("exact") for own in summaries.values() for row in own["policies"].values())
    title = "Exactly right answers of 16 by target; tokens" if has_answers else "Tokens"
    rows = [row for row in rows if any(row[1:])]
    return table(f"{title} and processor minutes of a run", ["policy", *summaries], rows)


def _names(summaries: Summaries) -> list[str]:
    found = {name: None for summary in summaries.values() for name in summary["policies"]}
    return [name for name in found if name not in (UNIFORM, BEST)]


def table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Writes a table with its title; nothing without rows.

    Args:
        title: What it shows.
        heads: Headings.
        rows: The cells.

    Returns:
        Markdown.
    """
    return f"**{title}**\n\n{markdown(heads, rows)}" if rows else ""


def interval(figure: Mapping[str, float], style: str = ".1f") -> str:
    """Writes a mean with its interval.

    Args:
        figure: What `paired` gave.
        style: Format of the mean.

    Returns:
        Text; empty where there is no mean.
    """
    if not np.isfinite(figure["mean"]):
        return ""
    half = f" ± {figure['half_width']:{style.lstrip('+')}}" if np.isfinite(figure["half_width"]) else ""
    return f"{figure['mean']:{style}}{half}"


def _samples(row: Mapping[str, Any]) -> str:
    return _part(row["samples"])


def _part(value: float) -> str:
    return f"{value:.2f}" if np.isfinite(value) else "never"
