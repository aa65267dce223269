"""Runs the tutorials, and writes what they print into their pages and notebooks.

A tutorial is a page of `docs/tutorials`. Its blocks of Python are the cells of a notebook beside it; a block of text
right after one is what the cell prints. Run as `python -m docs.site.notebooks [NAME ...]` after a change to a page.
"""

import argparse
import contextlib
import io
import json
import os
import re
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

FOLDER = Path(__file__).parents[1] / "tutorials"
_CODE = re.compile(r"```python\n(.*?)```\n(?:\n```text\n(.*?)```\n)?", re.DOTALL)
_LINK = re.compile(r"\]\((?!\w+:)([^)#]+\.md)")


@dataclass(frozen=True)
class Cell:
    """A cell of a tutorial.

    Args:
        source: Its text: Markdown, or Python.
        is_code: Whether it is Python.
        output: What it prints.
    """

    source: str
    is_code: bool = False
    output: str = ""


def cells_of(page: str) -> list[Cell]:
    """Cuts a page into cells.

    Args:
        page: The page's Markdown.

    Returns:
        Its cells, in order.
    """
    texts = _CODE.split(page)
    cells = [Cell(texts[0].strip("\n"))]
    for code, output, text in zip(texts[1::3], texts[2::3], texts[3::3], strict=True):
        cells += [Cell(code.rstrip("\n"), True, output or ""), Cell(text.strip("\n"))]
    return [cell for cell in cells if cell.source]


def run(cells: list[Cell]) -> Iterator[Cell]:
    """Runs the cells from top to bottom in one namespace, as a notebook does, in a folder that is removed afterwards.

    Args:
        cells: The cells.

    Yields:
        Each cell with what it printed.
    """
    with tempfile.TemporaryDirectory() as folder, contextlib.chdir(folder):
        namespace: dict[str, object] = {"__name__": "__main__"}
        for number, cell in enumerate(cells):
            printed = io.StringIO()
            namespace["print"] = partial(print, file=printed)  # the Trainer's own lines, with times, are left out
            if cell.is_code:
                exec(compile(cell.source, f"cell {number}", "exec"), namespace)  # noqa: S102
            yield replace(cell, output=re.sub(r"[ \t]+$", "", printed.getvalue(), flags=re.MULTILINE))


def page_of(cells: list[Cell]) -> str:
    """Writes cells as a page.

    Args:
        cells: The cells.

    Returns:
        Markdown.
    """
    parts = []
    for cell in cells:
        parts.append(f"```python\n{cell.source}\n```" if cell.is_code else cell.source)
        if cell.output:
            parts.append(f"```text\n{cell.output}```")
    return "\n\n".join(parts) + "\n"


def notebook_of(cells: list[Cell]) -> str:
    """Writes cells as a notebook. Its links lead to the pages of the site's source, as those of the page do.

    Args:
        cells: The cells.

    Returns:
        The notebook's JSON, in version 4.5 of the format.
    """
    content = {
        "cells": [_notebook_cell(number, cell) for number, cell in enumerate(cells)],
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(content, indent=1, ensure_ascii=False, sort_keys=True) + "\n"


def _notebook_cell(number: int, cell: Cell) -> dict[str, object]:
    shared = {"id": f"cell-{number}", "metadata": {}, "source": cell.source.splitlines(keepends=True)}
    if not cell.is_code:
        return {"cell_type": "markdown", **shared}
    stream = {"name": "stdout", "output_type": "stream", "text": cell.output.splitlines(keepends=True)}
    return {"cell_type": "code", "execution_count": None, "outputs": [stream] if cell.output else [], **shared}


def cells_of_notebook(notebook: str) -> list[Cell]:
    """Reads the cells of a notebook.

    Args:
        notebook: The notebook's JSON.

    Returns:
        Its cells, in order.
    """
    return [
        Cell(
            "".join(cell["source"]),
            cell["cell_type"] == "code",
            "".join(text for output in cell.get("outputs", []) for text in output["text"]),
        )
        for cell in json.loads(notebook)["cells"]
    ]


def main() -> None:
    """Runs the tutorials and writes their pages and their notebooks."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    known = sorted(path.stem for path in FOLDER.glob("*.md"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="tutorials; default: all")
    for name in parser.parse_args().names or known:
        path = FOLDER / f"{name}.md"
        cells = list(run(cells_of(path.read_text(encoding="utf-8"))))
        path.write_text(page_of(cells), encoding="utf-8")
        path.with_suffix(".ipynb").write_text(notebook_of(cells), encoding="utf-8")


if __name__ == "__main__":
    main()
