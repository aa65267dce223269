"""The command `mixer`, one file a command."""

from mixer.tools.cli.entry import main

__all__ = ["main"]
