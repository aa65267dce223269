"""Names each cell's column in tables, so that a narrow screen can show a row as a list of named cells."""

import re
from html import escape, unescape

_TABLE = re.compile(r"<table>.*?</table>", re.DOTALL)
_HEAD = re.compile(r"<th\b[^>]*>(.*?)</th>", re.DOTALL)
_ROW = re.compile(r"<tr\b.*?</tr>", re.DOTALL)
_WIDE = 8  # columns


def with_named_cells(html: str) -> str:
    """Adds the attribute `data-column` to the cells of every table, and `data-wide` to tables of many columns.

    Args:
        html: The content of a page.

    Returns:
        The same content with these attributes.
    """
    return _TABLE.sub(lambda table: _named(table.group()), html)


def _named(table: str) -> str:
    names = [escape(unescape(re.sub(r"<[^>]+>", "", name)).strip(), quote=True) for name in _HEAD.findall(table)]
    named = _ROW.sub(lambda row: _named_row(row.group(), names), table)
    return named.replace("<table>", '<table data-wide="">', 1) if len(names) > _WIDE else named


def _named_row(row: str, names: list[str]) -> str:
    columns = iter(names)
    return re.sub(r"<td\b", lambda cell: f'{cell.group()} data-column="{next(columns, "")}"', row)
