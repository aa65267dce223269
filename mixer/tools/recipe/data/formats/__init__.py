"""Formats, one file each: they turn rows of a data set into samples for a model."""

from mixer.tools.recipe.data.formats.base import Format
from mixer.tools.recipe.data.formats.chat import Chat
from mixer.tools.recipe.data.formats.dialogue import Dialogue
from mixer.tools.recipe.data.formats.labelled import Labelled
from mixer.tools.recipe.data.formats.prompt import Prompt
from mixer.tools.recipe.data.formats.text import Text

__all__ = ["Chat", "Dialogue", "Format", "Labelled", "Prompt", "Text"]
