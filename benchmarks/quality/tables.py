"""The tables of `benchmarks.quality`, in Markdown."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from benchmarks.quality.optimum import Optimum
from benchmarks.quality.report import GRID


def markdown(mixture: str, figures: Mapping[str, Mapping[str, Any]], spread: Mapping[str, float]) -> str:
    """Writes a mixture's table; of the grid, the mixtures that were run on more than one seed.

    Args:
        mixture: Its name.
        figures: What `summarise` gave.
        spread: What `spread_over_noise` gave.

    Returns:
        Markdown.
    """
    has_accuracy = any("accuracy" in row for row in figures.values())
    kinds = ("average", "worst", "accuracy") if has_accuracy else ("average", "worst")
    heads = ["policy", "seeds", *(head for kind in kinds for head in (kind, "less uniform")), "time", "probe", "shares"]
    lines = [f"### {mixture}", "", _row(heads), _row(["---"] * len(heads))]
    num_seeds = max(len(row["seeds"]) for row in figures.values())
    for name, row in sorted(figures.items(), key=lambda item: float(np.mean(item[1]["average"]))):
        if name.startswith(GRID) and len(row["seeds"]) < num_seeds:
            continue
        cells = [f"`{name}`", str(len(row["seeds"]))]
        for kind in kinds:
            cells += [_plus_minus(row[kind]), _interval(row[f"{kind}_over_uniform"])]
        shares = " / ".join(f"{share:.2f}" for share in row["shares"].values())
        lines.append(_row([*cells, f"{row['time_over_uniform']:.2f}", f"{100 * row['probe_share']:.1f} %", shares]))
    streams = " / ".join(next(iter(figures.values()))["shares"])
    lines += ["", f"Shares of all samples: {streams}.", _spread_in_words(spread)]
    return "\n".join(lines)


def summary(mixtures: Mapping[str, Mapping[str, Mapping[str, Any]]], uniform: str) -> str:
    """Writes one table of all mixtures: losses over those of uniform mixing, in per cent, by how the averages rank.

    Args:
        mixtures: By mixture, what `summarise` gave.
        uniform: The name of uniform mixing.

    Returns:
        Markdown; of the grid only what is in the tables of the mixtures. Bold where the 95 % interval is without 0.
    """
    names = [name for name in next(iter(mixtures.values())) if all(name in figures for figures in mixtures.values())]
    names = [name for name in names if not name.startswith(GRID)]
    heads = ["policy", *(f"{kind}, {mixture}" for kind in ("average", "worst") for mixture in mixtures), "time"]
    rows = []
    for name in names:
        relative = {
            kind: [_percent(figures[name], figures[uniform], kind) for figures in mixtures.values()]
            for kind in ("average", "worst")
        }
        cells = [cell for kind in relative.values() for _, cell in kind]
        times = [figures[name]["time_over_uniform"] for figures in mixtures.values()]
        mean = float(np.mean([value for value, _ in relative["average"]]))
        rows.append((mean, _row([f"`{name}`", *cells, f"{min(times):.2f}-{max(times):.2f}"])))
    lines = ["### All mixtures", "", _row(heads), _row(["---"] * len(heads))]
    return "\n".join([*lines, *(row for _, row in sorted(rows, key=lambda row: row[0]))])


def _percent(row: Mapping[str, Any], uniform: Mapping[str, Any], kind: str) -> tuple[float, str]:
    difference, base = row[f"{kind}_over_uniform"], float(np.mean(uniform[kind]))
    value = 100.0 * difference["mean"] / base
    is_sure = difference["num_seeds"] > 1 and abs(difference["mean"]) > difference["half_width"]
    return value, f"**{value:+.1f}**" if is_sure else f"{value:+.1f}"


def optimum_in_words(fixed: Optimum, changing: Optimum, streams: Sequence[str]) -> str:
    """Writes what the best weights of the synthetic mixture are.

    Args:
        fixed: The best fixed ones.
        changing: The best that change.
        streams: Names of the streams.

    Returns:
        Markdown.
    """
    weights = " / ".join(f"{weight:.3f}" for weight in fixed.weights[0])
    worst = " / ".join(f"{loss:.3f}" for loss in fixed.losses)
    return (
        f"Best fixed mixture, computed: {weights} ({' / '.join(streams)}), expected average {fixed.average:.4f} "
        f"({worst}). Best that changes every twelfth of the run: {changing.average:.4f}."
    )


def _spread_in_words(spread: Mapping[str, float]) -> str:
    return (
        f"Average losses of the grid range over {spread['range']:.3f}, deviation {spread['deviation']:.4f}; deviation "
        f"of uniform mixing over seeds {spread['noise']:.4f}; ratio {spread['ratio']:.1f}."
    )


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _plus_minus(values: Sequence[float]) -> str:
    deviation = f" ± {np.std(values, ddof=1):.3f}" if len(values) > 1 else ""
    return f"{np.mean(values):.3f}{deviation}"


def _interval(difference: Mapping[str, Any]) -> str:
    if difference["num_seeds"] < 2:
        return "" if difference["num_seeds"] == 0 else f"{difference['mean']:+.3f}"
    mean, half = difference["mean"], difference["half_width"]
    return f"{mean:+.3f} [{mean - half:+.3f}, {mean + half:+.3f}]"
