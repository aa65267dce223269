"""Tables on the screen, or as Markdown to be pasted into a page."""

from collections.abc import Sequence

from benchmarks.common import show


def markdown(columns: Sequence[str], rows: Sequence[Sequence[str]], has_numbers: bool = False) -> str:
    """Writes a table in Markdown.

    Args:
        columns: Headings.
        rows: The cells.
        has_numbers: Whether all columns but the first are numbers, to be aligned at the right.

    Returns:
        Its lines.
    """
    marks = ["---", *["---:" if has_numbers else "---"] * (len(columns) - 1)]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (columns, marks, *rows))


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
    print(f"{title}:\n", markdown(columns, rows, has_numbers=True), "", sep="\n", flush=True)
