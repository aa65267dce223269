"""Data of streams: sources of rows, formats that turn them into samples, and held-out rows."""

from mixer.tools.recipe.data.formats import Chat, Dialogue, Format, Labelled, Prompt, Text
from mixer.tools.recipe.data.formatting import formatted
from mixer.tools.recipe.data.source import DataSource
from mixer.tools.recipe.data.validation import Validation

__all__ = ["Chat", "DataSource", "Dialogue", "Format", "Labelled", "Prompt", "Text", "Validation", "formatted"]
