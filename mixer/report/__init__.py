"""One page about runs: a table and interactive plots, from their ledgers."""

from mixer.report.page import write_report

__all__ = ["write_report"]
