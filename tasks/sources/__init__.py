"""Data sources for task sequences: in memory, in files, on the Hugging Face hub."""

from replay.storage.labels import read_labels as labels_of
from tasks.sources.arrays import Arrays, ByColumns
from tasks.sources.clinc150 import clinc150
from tasks.sources.digits import digits
from tasks.sources.hugging_face import hub, local_files
from tasks.sources.npz import npz
from tasks.sources.splits import Splits
from tasks.sources.words import Words, words

__all__ = [
    "Arrays",
    "ByColumns",
    "Splits",
    "Words",
    "clinc150",
    "digits",
    "hub",
    "labels_of",
    "local_files",
    "npz",
    "words",
]
