"""Polarity of sentences for the upper layers of a pre-trained encoder; see `benchmarks.continual.pretrained`.

Four sets share one output of two classes: phrases (MPQA), reviews of products (CR) and of films (MR, SST-2).
"""

from pathlib import Path

import numpy as np

from benchmarks.continual.pretrained import encoded
from benchmarks.quality.data import PARTS, Splits, labelled, part_of

_NUM_VALIDATION, _NUM_TEST = 150, 200  # computed once, but evaluated in each run


def polarity(name: str, folder: str, num_samples: int = 600, wrong: float = 0.0) -> Splits:
    """Reads a set, as what the frozen layers make of its sentences.

    Args:
        name: One of mpqa, cr, mr and sst2.
        folder: The data's folder.
        num_samples: Sentences to train on, chosen at random.
        wrong: Share of these that get the other class.

    Returns:
        The parts.

    Raises:
        FileNotFoundError: If a file or the encoder is missing.
    """
    random, found = np.random.default_rng(0), {}
    whole = labelled(Path(folder), name)
    rows = [whole[place] for place in random.permutation(len(whole))]
    for part, most in zip(PARTS, (num_samples, _NUM_VALIDATION, _NUM_TEST), strict=True):
        own = [row for row in rows if part_of(row[1]) == part][:most]
        is_wrong = random.random(len(own)) < (wrong if part == "train" else 0.0)
        found[part] = encoded(
            [(abs(label - bool(turn)), text) for (label, text), turn in zip(own, is_wrong, strict=True)]
        )
    return found
