"""The sentences of `benchmarks.quality.multi_task`: six tasks in three parts each.

MR and SST-2 are made of the same reviews, and SUBJ has thousands of them too. So the part of a sentence goes by its
letters, whatever its task is (`benchmarks.quality.data.part_of`). That does not see brackets, which one set writes as
`-lrb-`, nor sentences that one set has whole and another cut: so a sentence that shares 32 letters in a row with one of
a test part is held out of the other parts, and one that shares them with a validation part is not trained on.

What SUBJ is trained on is left out of MR's and SST-2's training parts, unless it is to be kept. With it, to know a
review of MR again is to know that SUBJ calls it subjective: a model of all tasks learns that, and it is of no use on
sentences that are new.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import torch

from benchmarks.quality.data import PARTS, labelled, part_of
from benchmarks.quality.sentences import NUM_CLASSES, Sentences
from tasks.sources import words
from tasks.sources.loaders import Splits

Row = tuple[int, str]
Texts = Mapping[str, Mapping[str, Sequence[Row]]]
TASKS = tuple(NUM_CLASSES)

# Sizes of 100 : 1, in equal ratios; the order is that of the tasks' whole sizes but for TREC's, which has six classes.
CUT = {"mpqa": 6000, "sst2": 2400, "subj": 950, "mr": 380, "trec": 150, "cr": 60}
_SHARED = 32  # letters in a row, by which two sentences are taken for the same


def read_texts(folder: Path, seed: int = 0, keeps_overlap: bool = False) -> Texts:
    """Reads the six tasks.

    Args:
        folder: The data's folder.
        seed: Seed of the parts: which sentences are held out.
        keeps_overlap: Whether MR and SST-2 are trained on sentences that SUBJ is trained on too.

    Returns:
        Labels and sentences of each part of each task.

    Raises:
        FileNotFoundError: If a file is missing.
    """
    found: dict[str, dict[str, list[Row]]] = {task: {part: [] for part in PARTS} for task in TASKS}
    for task in TASKS:
        for label, text in labelled(folder, task):
            found[task][part_of(f"{seed} {_without_brackets(text)}")].append((label, text))
    for part, others in (("validation", ("test",)), ("train", ("test", "validation"))):
        held = _all_runs(row for task in TASKS for other in others for row in found[task][other])
        for task in TASKS:
            found[task][part] = _without(found[task][part], held)
    if not keeps_overlap:
        of_subjectivity = _all_runs(found["subj"]["train"])
        for task in ("mr", "sst2"):
            found[task]["train"] = _without(found[task]["train"], of_subjectivity)
    return found


def cut(texts: Texts, seed: int) -> Texts:
    """Cuts the training parts to sizes of 100 : 1.

    Args:
        texts: The tasks.
        seed: Seed of which sentences stay.

    Returns:
        The tasks; validation and test parts are whole.
    """
    found = {}
    for task, parts in texts.items():
        order = np.random.default_rng([seed, CUT[task]]).permutation(len(parts["train"]))[: CUT[task]]
        found[task] = {**parts, "train": [parts["train"][index] for index in order.tolist()]}
    return found


def _without(rows: Sequence[Row], held: set[str]) -> list[Row]:
    return [(label, text) for label, text in rows if held.isdisjoint(_runs(text))]


def _without_brackets(text: str) -> str:
    return text.replace("-lrb-", " ").replace("-rrb-", " ")


def _runs(text: str) -> list[str]:
    """Lists all letters in a row; none of a short text, whose letters `part_of` compares as a whole."""
    plain = "".join(sign for sign in _without_brackets(text.lower()) if sign.isalnum())
    return [plain[first : first + _SHARED] for first in range(len(plain) - _SHARED + 1)]


def _all_runs(rows: Iterable[Row]) -> set[str]:
    return {run for _, text in rows for run in _runs(text)}


def number(texts: Texts, tasks: Sequence[str], length: int) -> dict[str, dict[str, Sentences]]:
    """Numbers the words of the tasks that one model is trained on.

    Args:
        texts: The tasks.
        tasks: Those of the model. A word has a number if it comes twice in their training parts.
        length: Most words of a sentence; what is longer is cut.

    Returns:
        The parts of each task.
    """
    places = [(task, part) for task in tasks for part in PARTS]
    rows = [row for task, part in places for row in texts[task][part]]
    whole = _dataset(rows)
    learned_from = _dataset([row for task in tasks for row in texts[task]["train"]])
    numbered = words(Splits(learned_from, whole), max_length=length, min_count=2).evaluation
    samples = numbered.read_columns(np.arange(len(rows)))
    ends = np.cumsum([len(texts[task][part]) for task, part in places])[:-1].tolist()
    ids, labels = (torch.tensor_split(samples[name], ends) for name in ("input_ids", "labels"))
    found: dict[str, dict[str, Sentences]] = {task: {} for task in tasks}
    for place, (task, part) in enumerate(places):
        found[task][part] = Sentences(ids[place], labels[place])
    return found


def _dataset(rows: Sequence[Row]) -> datasets.Dataset:
    labels, texts = zip(*rows, strict=True)
    return datasets.Dataset.from_dict({"text": list(texts), "label": list(labels)})


def cut_padding(samples: Sequence[Mapping[str, torch.Tensor]]) -> dict[str, Any]:
    """Makes a batch that is as wide as its longest sentence.

    Args:
        samples: Sentences of one width.

    Returns:
        `input_ids` and `labels`.
    """
    ids = torch.stack([sample["input_ids"] for sample in samples])
    width = int(ids.ne(0).sum(dim=1).max())
    return {"input_ids": ids[:, :width], "labels": torch.stack([sample["labels"] for sample in samples])}
