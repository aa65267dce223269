"""One HTML page about runs, with tables and interactive plots from their ledgers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixer.tools.report.page import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    """Imports the plotting libraries on first use: they belong to an extra that training does not need."""
    if name == "write_report":
        from mixer.tools.report.page import write_report

        return write_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
