"""Draws the diagrams and charts of the documentation as SVG. Run as `python -m docs.site.pictures`."""

import re
from collections.abc import Iterable, Sequence
from html import escape
from pathlib import Path
from textwrap import wrap

import numpy as np
import pandas as pd

from mixer.mixture.apportion import apportion
from mixer.utils.arrays import FloatArray

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "docs" / "pictures"
BLUE, ORANGE, GREEN, GREY, INK = "#2c6fbb", "#d9772b", "#3a9a5c", "#9aa3ad", "#1d232a"
MINUS = "\N{MINUS SIGN}"
STREAMS = {"math": BLUE, "code": ORANGE, "chat": GREEN}
Point = tuple[float, float]


def _text(x: float, y: float, text: str, size: int = 15, anchor: str = "start", color: str = INK) -> str:
    return f'<text x="{x:g}" y="{y:g}" font-size="{size}" text-anchor="{anchor}" fill="{color}">{escape(text)}</text>'


def _box(x: float, y: float, width: float, height: float, color: str, opacity: float = 1.0) -> str:
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="3" fill="{color}" '
        f'fill-opacity="{opacity:g}"/>'
    )


def _line(points: Sequence[Point], color: str = GREY, width: float = 1.5, ends: str = "") -> str:
    path = " ".join(f"{x:g},{y:g}" for x, y in points)
    return f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="{width:g}"{ends}/>'


def _arrow(*points: Point) -> str:
    return _line(points, INK, 1.5, ' marker-end="url(#end)"')


def _picture(title: str, width: int, height: int, parts: Iterable[str]) -> str:
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" viewBox="0 0 {width} {height}" '
        f'role="img" font-family="system-ui, sans-serif">\n<title>{escape(title)}</title>\n'
        '<defs><marker id="end" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        f'<path d="M0,0 L8,4 L0,8 z" fill="{INK}"/></marker></defs>\n'
    )
    card = f'<rect width="{width}" height="{height}" rx="8" fill="#ffffff"/>'
    return head + "\n".join([card, *parts]) + "\n</svg>\n"


# ---- What "auto" gains ----


def _percent(cell: str) -> float | None:
    found = re.match(r"\**([+-]?[\d.]+)", cell.strip().replace(MINUS, "-"))
    return float(found.group(1)) if found else None


def drawn(page: str) -> pd.DataFrame:
    """Reads the table of drawn scenarios.

    Args:
        page: The page on measured policies.

    Returns:
        One row per kind of scenario, one column per policy: per cent above uniform mixing, NaN where it was not run.
    """
    table = page[page.index("| what was drawn |") :].partition("\n\n")[0].splitlines()
    heads, _, *rows = [[cell.strip() for cell in row.strip("|").split("|")] for row in table]
    policies = {place: head.split("`")[1].strip('"') for place, head in enumerate(heads) if head.startswith("`")}
    return pd.DataFrame(
        {name: {row[0]: _percent(row[at]) for row in rows} for at, name in policies.items()}, dtype=float
    )


def _bar(zero: float, y: float, value: float, scale: float, color: str) -> list[str]:
    length = scale * value
    label = f"{value:+.1f}".replace("-", MINUS) if value else "0"
    end = (
        _text(zero + length - 5, y + 10, label, 12, "end")
        if value <= 0
        else _text(zero + length + 5, y + 10, label, 12)
    )
    return [_box(min(zero, zero + length), y, abs(length), 11, color), end]


def gains(page: str) -> str:
    """Draws the objective's loss relative to uniform mixing, by kinds of drawn scenarios.

    Args:
        page: The page on measured policies.

    Returns:
        The picture.
    """
    table, zero, colors = drawn(page).dropna(axis=1), 380, (BLUE, ORANGE, GREY)
    scale = min(10.0, 130 / max(1.0, table.to_numpy().max()))  # 50 are left for the longest bar's number
    height = 13 * len(table.columns) + 12
    bottom = 66 + height * len(table)
    parts = [_text(16, 28, "Objective loss relative to uniform mixing, in per cent: less is better", 15)]
    for number, (name, color) in enumerate(zip(table, colors, strict=False)):
        parts += [_box(16 + 180 * number, 40, 12, 12, color), _text(34 + 180 * number, 51, str(name), 13)]
    parts.append(_line([(zero, 62), (zero, bottom)], INK))
    for number, (kind, values) in enumerate(table.iterrows()):
        top = 70 + height * number
        lines = wrap(str(kind), 30)
        parts += [_text(16, top + height / 2 + 15 * at - 7 * len(lines) + 7, line, 13) for at, line in enumerate(lines)]
        for at, (value, color) in enumerate(zip(values, colors, strict=False)):
            parts += _bar(zero, top + 13 * at, value, scale, color)
    return _picture("Objective loss relative to uniform mixing, by kinds of scenarios", 560, bottom + 10, parts)


# ---- Concepts ----


def step() -> str:
    """Draws the way of a step from streams to the policy and back."""
    parts, counts = [], {"math": 4, "code": 2, "chat": 2}
    for number, (name, color) in enumerate(STREAMS.items()):
        x = 24 + 76 * number
        parts += [_text(x + 26, 32, name, 14, "middle", color)]
        parts += [_box(x, 42 + 11 * row, 52, 8, color, 0.25 if row < 7 - counts[name] else 1) for row in range(7)]
        parts.append(_arrow((x + 26, 122), (x + 26, 146)))
    batch = [color for name, color in STREAMS.items() for _ in range(counts[name])]
    parts += [_box(34 + 25 * place, 152, 20, 20, color) for place, color in enumerate(batch)]
    parts.append(_text(130, 194, "one step: 4 + 2 + 2 samples", 13, "middle"))
    parts += [_arrow((238, 162), (280, 120)), _arrow((238, 162), (280, 204))]
    for rank, y in ((0, 100), (1, 184)):
        parts.append(_text(286, y - 6, f"rank {rank}: micro-batches", 13))
        parts += [_box(286 + 25 * place, y, 20, 20, color) for place, color in enumerate(batch[rank::2])]
        parts.append(_arrow((392, y + 10), (424, y + 10)))
    parts += [_text(430, 114, "forward,", 13), _text(430, 132, "backward", 13)]
    parts += [_text(430, 190, "one gradient,", 13), _text(430, 208, "loss by stream", 13)]
    parts += [_arrow((474, 220), (474, 262), (368, 262)), _box(232, 242, 132, 40, INK, 0.08)]
    parts += [_text(298, 267, "mixing policy", 15, "middle"), _arrow((232, 262), (12, 262), (12, 80), (22, 80))]
    parts.append(_text(20, 280, "weights of the next step", 13))
    return _picture("One step: streams, batch, ranks, losses, policy", 560, 300, parts)


def _axes(x: float, y: float, width: float, height: float, title: str, below: str) -> list[str]:
    return [
        _text(x, y - 12, title, 14),
        _line([(x, y), (x, y + height), (x + width, y + height)], INK),
        _text(x + width, y + height + 18, below, 12, "end"),
    ]


def counts() -> str:
    """Draws how far the samples of a stream are off its share: counted, and drawn at random."""
    weights, batch, steps = np.array([0.5, 0.3, 0.2]), 16, 300
    planned = _apportioned(weights, batch, steps)
    drawn = np.cumsum(np.random.default_rng(0).multinomial(batch, weights, steps)[:, 0])
    asked = weights[0] * batch * np.arange(1, steps + 1)
    parts = _axes(50, 50, 480, 180, "Samples of a stream, less its share of all", f"step {steps}")
    most = float(np.abs(drawn - asked).max())
    for values, color in ((drawn - asked, GREY), (planned - asked, BLUE)):
        heights = 140 - 85 * values / most
        parts.append(_line([(50 + 480 * at / steps, float(y)) for at, y in enumerate(heights, 1)], color, 2))
    parts += [
        _text(44, 144, "0", 12, "end"),
        _text(44, 60, f"+{most:.0f}", 12, "end"),
        _text(44, 229, f"{MINUS}{most:.0f}", 12, "end"),
    ]
    parts += [
        _text(525, 162, "counted: within one sample", 13, "end", BLUE),
        _text(300, 66, "drawn at random", 13, "end"),
    ]
    return _picture("Samples of a stream less its share: counted, and drawn at random", 560, 260, parts)


def _apportioned(weights: FloatArray, batch: int, steps: int) -> FloatArray:
    """Counts the samples of the first stream so far, step by step."""
    totals, deficit, total = np.zeros(steps), np.zeros(len(weights)), 0
    for number in range(steps):
        step_counts, deficit = apportion(weights, batch, deficit)
        total += int(step_counts[0])
        totals[number] = total
    return totals


def coverage() -> str:
    """Draws how much of a stream is seen: in its own order, and drawn with replacement."""
    drawn = np.arange(0, 201) / 100
    parts = _axes(60, 50, 470, 180, "Coverage of a stream", "passes: samples drawn over samples there are")
    for values, color in ((1 - np.exp(-drawn), GREY), (np.minimum(drawn, 1), BLUE)):
        points = zip(60 + 235 * drawn, 230 - 160 * values, strict=True)
        parts.append(_line([(float(x), float(y)) for x, y in points], color, 2.5))
    parts += [_text(54, 74, "100 %", 12, "end"), _text(291, 224, "1", 12, "end"), _text(528, 224, "2", 12, "end")]
    parts += [_text(304, 62, "own order: all, each once a pass", 13, "start", BLUE)]
    parts += [_text(304, 170, "with replacement:", 13), _text(304, 188, "63 % after one pass", 13)]
    return _picture("Coverage of a stream over passes", 560, 262, parts)


def replay() -> str:
    """Draws the shares of a run that replays an old stream."""
    parts = _axes(50, 50, 480, 180, "Shares of the samples", "progress of the run")
    parts += [_box(50, 52, 239, 177, BLUE, 0.8), _box(291, 70, 239, 159, ORANGE, 0.8), _box(291, 52, 239, 16, GREEN)]
    parts += [_text(170, 146, "old", 16, "middle", "#ffffff"), _text(410, 156, "new", 16, "middle", "#ffffff")]
    parts += [_text(410, 65, "memory: a tenth", 12, "middle", "#ffffff"), _text(290, 246, "0.5", 12, "middle")]
    parts += [_text(44, 62, "100 %", 12, "end")]
    return _picture("Shares of an old stream, a new one, and a memory of the old", 560, 262, parts)


def pictures() -> dict[str, str]:
    """Draws all pictures.

    Returns:
        Each, by the name of its file.
    """
    page = (ROOT / "docs" / "measured" / "policies.md").read_text(encoding="utf-8")
    return {
        "gains.svg": gains(page),
        "step.svg": step(),
        "counts.svg": counts(),
        "coverage.svg": coverage(),
        "replay.svg": replay(),
    }


if __name__ == "__main__":
    for name, picture in pictures().items():
        (FOLDER / name).write_text(picture, encoding="utf-8")
