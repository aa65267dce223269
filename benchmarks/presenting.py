"""Tables on the screen, or as Markdown to be pasted into a page."""

from collections.abc import Sequence

from benchmarks.common import show


def present(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]], as_markdown: bool) -> None:
    """Prints a table.

    Args:
        title: What it shows.
        columns: Headings; the first column is text, the others are numbers.
        rows: The cells.
        as_markdown: Whether in Markdown.
    """
    if not as_markdown:
        show(title, columns, rows)
        return
    marks = ["---", *["---:"] * (len(columns) - 1)]
    lines = ["| " + " | ".join(cells) + " |" for cells in (columns, marks, *rows)]
    print(f"{title}:\n", *lines, "", sep="\n", flush=True)
