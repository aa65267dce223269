"""Panels of a report as pictures for papers."""

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import plotly.graph_objects as go

from mixer.report.exporting import file_name, made_folder
from mixer.report.plot import Plot, label

PICTURE_FORMATS = ("png", "svg", "pdf")

_WIDTH_PIXELS, _HEIGHT_PIXELS = 720, 440
_SCALE = 2  # of pixels, in formats that have them: sharp in print
_INK, _PAPER = "#1c1f24", "#ffffff"
_FEWEST_IN_LEGEND = 2


def check_pictures(picture_format: str) -> None:
    """Checks that pictures can be drawn.

    Args:
        picture_format: One of `PICTURE_FORMATS`.

    Raises:
        ValueError: If the format is unknown, or kaleido is not installed.
    """
    if picture_format not in PICTURE_FORMATS:
        raise ValueError(f"picture_format must be one of {', '.join(PICTURE_FORMATS)}, found {picture_format!r}.")
    if find_spec("kaleido") is None or find_spec("choreographer") is None:  # the old kaleido needs no choreographer
        raise ValueError(
            "pictures are drawn by kaleido 1.0 or later, which is not installed: "
            "pip install 'adaptive-mixer[pictures]'."
        )


def write_pictures(plots: Sequence[Plot], folder: str | Path, picture_format: str = "png") -> list[Path]:
    """Writes each panel as a file, with a legend, on white.

    Args:
        plots: The plots.
        folder: The folder; made if it does not exist. Files of the same name are replaced.
        picture_format: One of `PICTURE_FORMATS`.

    Returns:
        Paths of the pictures, named after plot and panel.

    Raises:
        ValueError: If the format is unknown, the folder is a file, or kaleido or a browser for it is not installed.
    """
    check_pictures(picture_format)
    target = made_folder(folder, "pictures")
    paths: dict[str, Path] = {}
    specifications = []
    for plot in plots:
        for panel in plot.panels:
            title = plot.title if panel.title == plot.title else f"{plot.title}: {panel.title}"
            name, figure = file_name(title, paths), for_paper(panel.figure, title)
            paths[name] = target / f"{name}.{picture_format}"
            size = {"width": _WIDTH_PIXELS, "height": figure.layout.height, "scale": _SCALE}
            options = {"format": picture_format, **size}
            specifications.append({"fig": figure.to_dict(), "path": str(paths[name]), "opts": options})
    _draw(specifications)
    return list(paths.values())


def for_paper(figure: go.Figure, title: str) -> go.Figure:
    """Copies a figure and adds what the page's style provides: background, ink, title and legend.

    Args:
        figure: The figure of a panel.
        title: Its title.
    """
    drawn = go.Figure(figure)
    for trace in drawn.data:
        if isinstance(trace, go.Scatter):  # pale lines belong to one that has a place in the legend
            trace.showlegend = trace.opacity is None and trace.hoverinfo != "skip"
    in_legend = sum(isinstance(trace, go.Scatter) and bool(trace.showlegend) for trace in drawn.data)
    drawn.update_layout(
        title={"text": label(title), "font": {"size": 15}, "x": 0.02, "xanchor": "left"},
        font={"family": "Arial, Helvetica, sans-serif", "size": 13, "color": _INK},
        paper_bgcolor=_PAPER,
        plot_bgcolor=_PAPER,
        showlegend=in_legend >= _FEWEST_IN_LEGEND,
        legend={"orientation": "h", "y": -0.2, "tracegroupgap": 0},
        margin={"l": 60, "r": 20, "t": 50, "b": 55},
        height=max(_HEIGHT_PIXELS, drawn.layout.height or 0),
        width=_WIDTH_PIXELS,
    )
    return drawn


def _draw(specifications: list[dict[str, Any]]) -> None:
    import kaleido  # type: ignore[import-untyped]  # an extra of its own
    from kaleido.errors import ChromeNotFoundError  # type: ignore[import-untyped]

    try:
        # Formulas are looked for in names otherwise, by a script from the network.
        kaleido.write_fig_from_object_sync(specifications, kopts={"mathjax": False})
    except ChromeNotFoundError:
        raise ValueError(
            "pictures are drawn by Chrome or Chromium, which was not found: install one so that it is on the PATH, "
            "name its program by the variable BROWSER_PATH, or run `plotly_get_chrome`, which downloads one."
        ) from None
