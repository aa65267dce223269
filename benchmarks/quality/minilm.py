"""Intents, reviews, topics and similarity for the upper layers of a pre-trained encoder.

See `benchmarks.continual.pretrained` for the encoder, all-MiniLM-L6-v2. Requests of CLINC150 are told apart by intent,
sentences of MR, CR and MPQA by polarity, those of TREC and SUBJ by topic, and pairs of requests by whether they have
the same intent. Which part a text belongs to is a hash of it, so that no pair of the test has a text that is trained
on, in whichever task.

A row has places for two texts, the second of which is empty but for pairs. Classes are numbered from 0 for a head by
task. For one head over all tasks `first_class` numbers them apart.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.continual.pretrained import Texts, encoded
from benchmarks.quality.data import PARTS, Splits, labelled, part_of
from tasks.sources import clinc150
from tasks.sources.arrays import InMemory

NUM_VALIDATION, NUM_TEST = 150, 200  # read once, but evaluated in each run
_INTENTS_OF_A_DOMAIN = 15
Requests = Sequence[tuple[int, str]]


def sentences(
    name: str, folder: str, num_samples: int = 600, first_class: int = 0, held_out: str | None = None
) -> Splits:
    """Reads a set of sentences with classes.

    Args:
        name: One of trec, mr, subj, cr and mpqa.
        folder: The data's folder.
        num_samples: Sentences to train on, chosen at random.
        first_class: Number of its first class.
        held_out: Another set with the same classes to hold sentences out of: a target that is not trained on.

    Returns:
        The parts.

    Raises:
        FileNotFoundError: If a file or the encoder is missing.
    """
    read = {part: labelled(Path(folder), (held_out if part != "train" else None) or name) for part in PARTS}
    return {part: _numbered(own, first_class) for part, own in _chosen(read.__getitem__, num_samples).items()}


def intents(folder: str, domains: Sequence[str], num_samples: int = 600, first_class: int = 0) -> Splits:
    """Reads requests of CLINC150, told apart by intent.

    Args:
        folder: The data's folder.
        domains: Names of domains, in the order that their intents are numbered in.
        num_samples: Requests to train on, chosen at random.
        first_class: Number of the first intent.

    Returns:
        The parts.

    Raises:
        FileNotFoundError: If a file or the encoder is missing.
    """
    requests = _requests(Path(folder), domains)
    return {part: _numbered(own, first_class) for part, own in _chosen(lambda _: requests, num_samples).items()}


def similarity(folder: str, domains: Sequence[str], num_samples: int = 600, first_class: int = 0) -> Splits:
    """Makes pairs of requests of CLINC150: half of them have the same intent, half others of one domain.

    Args:
        folder: The data's folder.
        domains: Names of domains.
        num_samples: Pairs to train on.
        first_class: Number of the class of those with other intents; the next one is that of the same.

    Returns:
        The parts.

    Raises:
        FileNotFoundError: If a file or the encoder is missing.
    """
    requests = _requests(Path(folder), domains)
    found = {}
    for part, count in zip(PARTS, (num_samples, NUM_VALIDATION, NUM_TEST), strict=True):
        own = [row for row in requests if part_of(row[1]) == part]
        found[part] = _pairs(own, count, first_class)
    return found


def _pairs(requests: Requests, count: int, first_class: int) -> InMemory:
    random, intents = np.random.default_rng(0), np.array([intent for intent, _ in requests])
    domains = intents // _INTENTS_OF_A_DOMAIN
    labels, firsts, seconds = np.arange(count) % 2, random.integers(0, len(intents), count), list[int]()
    for is_same, first in zip(labels, firsts, strict=True):
        has_intent = intents == intents[first]
        others = has_intent if is_same else (domains == domains[first]) & ~has_intent
        others[first] = False
        seconds.append(int(random.choice(np.flatnonzero(others))))
    return _rows(
        *(
            [(first_class + int(label), requests[place][1]) for label, place in zip(labels, side, strict=True)]
            for side in (firsts, seconds)
        )
    )


def _chosen(rows_of: Callable[[str], Texts], num_samples: int) -> Mapping[str, Texts]:
    """Takes rows of each part at random."""
    found = dict[str, Texts]()
    for part, most in zip(PARTS, (num_samples, NUM_VALIDATION, NUM_TEST), strict=True):
        own = [row for row in rows_of(part) if part_of(row[1]) == part]
        found[part] = [own[place] for place in np.random.default_rng(0).permutation(len(own))[:most]]
    return found


def _numbered(rows: Texts, first_class: int) -> InMemory:
    return _rows([(first_class + label, text) for label, text in rows])


def _rows(first: Texts, second: Texts | None = None) -> InMemory:
    """Gives what the frozen layers make of texts, or of pairs of them: `hidden` is `[num_rows, 2, length, width]`."""
    places = np.arange(len(first))
    read = encoded(first).read_columns(places)
    other = None if second is None else encoded(second).read_columns(places)
    pairs = {
        name: torch.stack([read[name], torch.zeros_like(read[name]) if other is None else other[name]], dim=1)
        for name in ("hidden", "attention_mask")
    }
    return InMemory({**pairs, "labels": read["labels"]})


def _requests(folder: Path, domains: Sequence[str]) -> list[tuple[int, str]]:
    """Reads the requests of some domains, with intents numbered in their order."""
    return [
        (domains.index(row["domain"]) * _INTENTS_OF_A_DOMAIN + row["label"] % _INTENTS_OF_A_DOMAIN, row["text"])
        for split in clinc150(folder / "clinc150")
        for row in split
        if row["domain"] in domains
    ]
