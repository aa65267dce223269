"""Data sources for task sequences: in memory, in files, on the Hugging Face hub."""

from replay.storage.labels import read_labels as labels_of
from tasks.sources.arrays import Arrays, ByColumns
from tasks.sources.images import augmented, pictures
from tasks.sources.loaders import Splits, clinc150, digits, hub, local_files, npz
from tasks.sources.weights import minilm, smollm2
from tasks.sources.words import Words, words

__all__ = [
    "Arrays",
    "ByColumns",
    "Splits",
    "Words",
    "augmented",
    "clinc150",
    "digits",
    "hub",
    "labels_of",
    "local_files",
    "minilm",
    "npz",
    "pictures",
    "smollm2",
    "words",
]
