"""Formats: what turns rows of a data set into what a model takes, one file each."""

from mixer.data.formats.base import Format
from mixer.data.formats.chat import Chat
from mixer.data.formats.labelled import Labelled
from mixer.data.formats.prompt import Prompt
from mixer.data.formats.text import Text

__all__ = ["Chat", "Format", "Labelled", "Prompt", "Text"]
