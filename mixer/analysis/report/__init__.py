"""One page about runs: a table and interactive plots, from their ledgers."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mixer.analysis.report.page import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    """Imports what draws when it is first asked for: its libraries are an extra that training does without."""
    if name == "write_report":
        from mixer.analysis.report.page import write_report

        return write_report
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
