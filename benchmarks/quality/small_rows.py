"""Small sets of sentences with classes or numbers, as words or for the upper layers of a pre-trained encoder."""

import json
import zlib
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from benchmarks.continual.pretrained import encoded
from benchmarks.quality.data import PARTS, Splits, labelled, part_of
from tasks.sources.arrays import InMemory

Form = Literal["words", "encoded", "numbers"]
Rows = list[tuple[int, str]]
NUM_WORDS = 4_000
NUM_CLASSES = {"domains": 10, "intents": 150, "trec": 6, "subj": 2, "mr": 2, "cr": 2, "mpqa": 2, "sst2": 2}
_LENGTH = 24  # words of a sentence
_DROPPED = 0.2  # of the words of a near-copy
_NUM_HELD: Mapping[str, Mapping[Form, int]] = {
    "validation": {"words": 256, "encoded": 150, "numbers": 256},
    "test": {"words": 600, "encoded": 200, "numbers": 600},
}


def sentences(
    name: str,
    folder: str,
    form: Form,
    num_samples: int,
    proportions: Sequence[float] | None = None,
    most: int | None = None,
    among: tuple[int, int] = (0, 1),
    first_class: int = 0,
    wrong: float = 0.0,
    copies_of: str = "train",
    is_copy: bool = False,
    number: int = 0,
) -> Splits:
    """Reads a set of sentences.

    Args:
        name: One of trec, mr, subj, cr, mpqa, sst2; or `"intents"` or `"domains"`, the classes of CLINC150.
        folder: The data's folder.
        form: `"words"` and their class, `"numbers"` for −1 and 1 in place of two classes, or `"encoded"` for the upper
            layers of the encoder.
        num_samples: Most sentences to train on, chosen at random.
        proportions: Of the classes, in all parts; `None` for those of the set.
        most: Most sentences of a class to train on; `None` for all.
        among: Which classes to train on: those whose number is the first, modulo the second.
        first_class: Number of the first class.
        wrong: Share of the sentences to train on that get another class.
        copies_of: Which part the copies are made of.
        is_copy: Whether to train on copies that lack some words.
        number: Seed of all choices; sources of another number have other sentences as far as there are enough.

    Returns:
        The parts.

    Raises:
        FileNotFoundError: If a file or the encoder is missing.
    """
    random, parts = np.random.default_rng(number), _parts(name, folder)
    train = [row for row in parts[copies_of if is_copy else "train"] if row[0] % among[1] == among[0]]
    train = _chosen(train, random, num_samples, proportions, most)
    if is_copy:
        train = [(label, _near(text, random)) for label, text in train]
    is_wrong, count = random.random(len(train)) < wrong, NUM_CLASSES[name]
    turns = is_wrong * random.integers(1, count, len(train)) if count > 1 else is_wrong
    train = [((label + int(turn)) % count, text) for (label, text), turn in zip(train, turns, strict=True)]
    held = np.random.default_rng(len(PARTS))  # the same for all sources
    found = {"train": train}
    for part in PARTS[1:]:
        found[part] = _chosen(parts[part], held, _NUM_HELD[part][form], proportions, None)
    return {part: _FORMS[form]([(first_class + label, text) for label, text in own]) for part, own in found.items()}


def _chosen(
    rows: Rows, random: np.random.Generator, most: int, proportions: Sequence[float] | None, most_of_class: int | None
) -> Rows:
    """Chooses rows at random: at most so many, at most so many of a class, in given proportions as far as they last."""
    order = random.permutation(len(rows)).tolist()
    left = {label: most if most_of_class is None else most_of_class for label, _ in rows}
    if proportions is not None:
        left = {label: round(most * proportions[label]) for label in left}
    found = Rows()
    for place in order:
        label = rows[place][0]
        if left[label] > 0 and len(found) < most:
            left[label] -= 1
            found.append(rows[place])
    return found


def _near(text: str, random: np.random.Generator) -> str:
    words = text.split()
    kept = [word for word, chance in zip(words, random.random(len(words)), strict=True) if chance >= _DROPPED]
    return " ".join(kept or words)


@cache
def _parts(name: str, folder: str) -> Mapping[str, Rows]:
    rows = _requests(Path(folder), name) if name in ("intents", "domains") else labelled(Path(folder), name)
    return {part: [row for row in rows if part_of(row[1]) == part] for part in PARTS}


def _requests(folder: Path, name: str) -> Rows:
    intents, domains = (
        json.loads((folder / "clinc150" / file).read_text()) for file in ("data_full.json", "domains.json")
    )
    groups = {intent: domain for domain, own in domains.items() for intent in own} if name == "domains" else {}
    rows = [(groups.get(own, own), text) for part in ("train", "val", "test") for text, own in intents[part]]
    # By chance: neighbours by name are alike, and `among` would part them.
    names = sorted({label for label, _ in rows})
    numbers = dict(zip(names, np.random.default_rng(0).permutation(len(names)).tolist(), strict=True))
    return [(numbers[label], text) for label, text in rows]


def _words(rows: Rows) -> InMemory:
    ids = np.zeros((len(rows), _LENGTH), dtype=np.int64)
    for place, (_, text) in enumerate(rows):
        words = [1 + zlib.crc32(word.encode()) % (NUM_WORDS - 1) for word in text.lower().split()[:_LENGTH]]
        ids[place, : len(words)] = words
    return InMemory({"input_ids": ids, "labels": np.array([label for label, _ in rows], dtype=np.int64)})


def _numbers(rows: Rows) -> InMemory:
    columns = _words(rows).read_columns(np.arange(len(rows)))
    return InMemory({**columns, "labels": 2.0 * columns["labels"].to(torch.float32) - 1.0})


_FORMS: Mapping[Form, Callable[[Rows], Any]] = {"words": _words, "encoded": encoded, "numbers": _numbers}
