"""The command `mixer`, one file a command."""

from mixer.cli.entry import main

__all__ = ["main"]
