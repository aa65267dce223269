"""Sentence classification with one model for six tasks: one encoder, and one output layer over all tasks' classes.

The classes are numbered apart, and the softmax of a sentence is over its own task's classes. Over all of them it would
first have to tell the tasks apart, which MR and SST-2 are not (the same reviews), and the mixture would matter as the
prior of that guess.
"""

from collections.abc import Mapping
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pandas as pd
import torch
from torch import Tensor, nn
from transformers import PretrainedConfig, PreTrainedModel
from transformers.modeling_outputs import SequenceClassifierOutput

from benchmarks.quality.data import PARTS, Splits, labelled, part_of
from mixer.utils.arrays import Int64Array
from tasks.sources import clinc150, words
from tasks.sources.arrays import InMemory
from tasks.sources.loaders import Splits as RowSplits

_NUM_INTENTS = 150
NUM_CLASSES = {"trec": 6, "mr": 2, "subj": 2, "cr": 2, "mpqa": 2, "sst2": 2}

_MASKED = -1e4  # a logit of a class of another task


def task(
    name: str, folder: str, num_words: int, length: int, num_samples: int | None = None, wrong: float = 0.0
) -> Splits:
    """Reads a task of sentence classification; the classes of all tasks are numbered apart.

    Args:
        name: One of trec, mr, subj, cr, mpqa and sst2.
        folder: The data's folder.
        num_words: Size of the vocabulary, which is that of all tasks' training parts.
        length: Words of a sentence; what is longer is cut.
        num_samples: Most sentences to train on, chosen at random; `None` for all.
        wrong: Share of the sentences to train on that get the next class of the task.

    Returns:
        The parts.

    Raises:
        FileNotFoundError: If a file is missing.
    """
    parts = _tasks(Path(folder), num_words, length)[name]
    whole = parts["train"]
    if not wrong and (num_samples is None or num_samples >= len(whole)):
        return parts
    random = np.random.default_rng(0)
    own = whole.read_columns(random.permutation(len(whole))[:num_samples])
    labels, first = own["labels"], int(whole.labels.min())
    is_wrong = torch.from_numpy(random.random(len(labels)) < wrong)
    labels = torch.where(is_wrong, first + (labels - first + 1) % NUM_CLASSES[name], labels)
    return {**parts, "train": InMemory({**own, "labels": labels})}


@cache
def _tasks(folder: Path, num_words: int, length: int) -> Mapping[str, Mapping[str, InMemory]]:
    columns: dict[str, list[Any]] = {"text": [], "label": [], "task": [], "part": []}
    first_classes = accumulate(NUM_CLASSES.values(), initial=0)
    for name, first_class in zip(NUM_CLASSES, first_classes, strict=False):
        for label, text in labelled(folder, name):
            row = {"text": text, "label": first_class + label, "task": name, "part": part_of(text)}
            for column, value in row.items():
                columns[column].append(value)
    whole = datasets.Dataset.from_dict(columns)
    learned_from = whole.select(np.flatnonzero(np.array(columns["part"]) == "train"))
    numbered = words(
        RowSplits(learned_from, whole), max_length=length, vocabulary_size=num_words, min_count=2
    ).evaluation
    tasks, parts = np.array(columns["task"]), np.array(columns["part"])
    places = {name: {part: np.flatnonzero((tasks == name) & (parts == part)) for part in PARTS} for name in NUM_CLASSES}
    return {name: {part: _columns(numbered, chosen) for part, chosen in own.items()} for name, own in places.items()}


def _columns(numbered: Any, chosen: Int64Array) -> InMemory:
    own = numbered.read_columns(chosen)
    return InMemory({name: own[name] for name in ("input_ids", "labels")})


def intents(
    folder: str,
    num_words: int,
    length: int,
    third: int | None = None,
    most: int = 100,
    number: int = 0,
    of: int = 1,
    wrong: float = 0.0,
) -> Splits:
    """Reads requests to an assistant, CLINC150, whose classes are intents numbered at random.

    Args:
        folder: The data's folder.
        num_words: Size of the vocabulary, which is that of all requests to train on.
        length: Words of a request; what is longer is cut.
        third: Which third of the intents, from 0; `None` for all.
        most: Requests of an intent to train on, the first ones.
        number: Which part of these, from 0.
        of: Number of parts.
        wrong: Share of the requests to train on that get an intent at random.

    Returns:
        The parts.

    Raises:
        FileNotFoundError: If a file is missing.
    """
    random, found = np.random.default_rng(number), {}
    for part, whole in zip(PARTS, _requests(Path(folder), num_words, length), strict=True):
        labels = whole.labels
        is_own = np.ones(len(labels), dtype=bool) if third is None else labels % 3 == third
        if part == "train":
            ranks = pd.Series(labels).groupby(labels).cumcount().to_numpy()
            is_own &= (ranks < most) & (ranks % of == number)
        own = whole.read_columns(np.flatnonzero(is_own))
        if part == "train":
            is_wrong = torch.from_numpy(random.random(len(own["labels"])) < wrong)
            drawn = torch.from_numpy(random.integers(0, _NUM_INTENTS, len(is_wrong)))
            own["labels"] = torch.where(is_wrong, drawn, own["labels"])
        found[part] = InMemory(own)
    return found


@cache
def _requests(folder: Path, num_words: int, length: int) -> list[InMemory]:
    order, found = torch.from_numpy(np.random.default_rng(0).permutation(_NUM_INTENTS)), list[InMemory]()
    for held_out in ("val", "test"):
        splits = words(
            clinc150(folder / "clinc150", held_out), max_length=length, vocabulary_size=num_words, min_count=2
        )
        for split in splits[len(found) > 0 :]:  # the first ones are the same both times
            own = split.read_columns(np.arange(len(split)))
            found.append(InMemory({"input_ids": own["input_ids"], "labels": order[own["labels"]]}))
    return found


class AveragingConfig(PretrainedConfig):  # type: ignore[no-untyped-call]
    """What a model of averaged words is like.

    Args:
        num_words: Size of the vocabulary.
        hidden: Width of the words and of the layers.
        layers: Hidden layers.
        sizes: Classes of each task; `None` for the six tasks of this module.
        **kwargs: As for any configuration.
    """

    model_type = "mixing-averaging"

    def __init__(
        self, num_words: int = 4_000, hidden: int = 64, layers: int = 2, sizes: list[int] | None = None, **kwargs: Any
    ):
        self.num_words, self.hidden, self.layers = num_words, hidden, layers
        self.sizes = sizes or [*NUM_CLASSES.values()]
        kwargs.setdefault("num_labels", sum(self.sizes))
        super().__init__(**kwargs)


class AveragingForSequenceClassification(PreTrainedModel):
    """A deep averaging network (Iyyer et al. 2015, P15-1162): the mean of the words, hidden layers, one output layer.

    Args:
        config: What it is like.
    """

    config_class = AveragingConfig
    base_model_prefix = "layers"

    def __init__(self, config: AveragingConfig):
        super().__init__(config)
        self.words = nn.Embedding(config.num_words, config.hidden)
        self.layers = nn.ModuleList(nn.Linear(config.hidden, config.hidden) for _ in range(config.layers))
        self.output = nn.Linear(config.hidden, int(config.num_labels or 0))
        self.task_of: Tensor
        tasks = torch.arange(len(config.sizes)).repeat_interleave(torch.tensor(config.sizes))
        self.register_buffer("task_of", tasks, persistent=False)
        self.post_init()  # type: ignore[no-untyped-call]

    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=0.5)
        elif isinstance(module, nn.Linear):
            module.reset_parameters()

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> SequenceClassifierOutput:
        """Classifies.

        Args:
            input_ids: int64 `[num_rows, length]`, 0 is padding.
            labels: int64 `[num_rows]`, numbered apart, which say the task too; `None` masks nothing. Numbers where the
                model has one output.

        Returns:
            The logits `[num_rows, num_labels]`, those of other tasks masked, and the mean loss.
        """
        there = input_ids.ne(0).unsqueeze(-1).float()
        hidden = (self.words(input_ids) * there).sum(dim=1) / there.sum(dim=1).clamp(min=1.0)
        for layer in self.layers:
            hidden = torch.relu(layer(hidden))
        logits = self.output(hidden)
        if labels is None:
            return SequenceClassifierOutput(logits=logits)
        if int(self.config.num_labels or 0) == 1:  # a number in place of classes
            return SequenceClassifierOutput(loss=self.loss_function(labels, logits, self.config), logits=logits)
        is_other = self.task_of[labels].unsqueeze(-1) != self.task_of
        logits = logits.masked_fill(is_other, _MASKED)
        return SequenceClassifierOutput(loss=self.loss_function(labels, logits, self.config), logits=logits)


def new_classifier(
    num_words: int, hidden: int, layers: int, sizes: list[int] | None = None
) -> AveragingForSequenceClassification:
    """Builds a model.

    Args:
        num_words: Size of the vocabulary.
        hidden: Width.
        layers: Hidden layers.
        sizes: Classes of each task; `None` for the six tasks of this module.

    Returns:
        The model.
    """
    return AveragingForSequenceClassification(AveragingConfig(num_words, hidden, layers, sizes))
