"""Data of streams: where rows come from, what makes samples of them, and what is held out."""

from mixer.data.formats import Chat, Format, Labelled, Prompt, Text
from mixer.data.formatting import formatted
from mixer.data.source import DataSource
from mixer.data.validation import Validation

__all__ = ["Chat", "DataSource", "Format", "Labelled", "Prompt", "Text", "Validation", "formatted"]
