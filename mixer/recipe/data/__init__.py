"""Data of streams: where rows come from, what makes samples of them, and what is held out."""

from mixer.recipe.data.formats import Chat, Format, Labelled, Prompt, Text
from mixer.recipe.data.formatting import formatted
from mixer.recipe.data.source import DataSource
from mixer.recipe.data.validation import Validation

__all__ = ["Chat", "DataSource", "Format", "Labelled", "Prompt", "Text", "Validation", "formatted"]
