"""Chats made of the files of well-known data sets: requests and their intents, reviews and their opinions."""

import json
from pathlib import Path

import datasets

from mixer.utils.errors import wrong_value
from mixer.utils.files import local_path
from tasks.chats import Rows, chat_of
from tasks.text_domains import key_of

_OPINIONS = ("negative", "positive")


def intents(folder: str, domain: str = "banking", num_samples: int = 1_000, num_validation_samples: int = 50) -> Rows:
    """Requests of a domain of CLINC150, each with its intent.

    Args:
        folder: The folder of `data_full.json` and `domains.json`.
        domain: One of its ten domains, with 15 intents.
        num_samples: Most chats for training.
        num_validation_samples: Most chats for validation.

    Returns:
        The data sets `"train"` and `"validation"`.

    Raises:
        ValueError: If there is no such domain.
        OSError: If a file is missing.
    """
    names, requests = (json.loads(_text(folder, name)) for name in ("domains.json", "data_full.json"))
    if domain not in names:
        raise wrong_value("domain", f"must be one of {', '.join(names)}, got {domain!r}.", found=domain)
    own = {intent: intent.replace("_", " ") for intent in names[domain]}
    parts = {
        split: [(f"What is the intent of this request?\n{text}", own[name]) for text, name in rows if name in own]
        for split, rows in (("train", requests["train"]), ("validation", requests["val"]))
    }
    return _chats(parts, num_samples, num_validation_samples)


def reviews(folder: str, num_samples: int = 1_000, num_validation_samples: int = 50) -> Rows:
    """Sentences of film reviews (SST-2), each with its opinion.

    Args:
        folder: The folder of `stsa.binary.train` and `stsa.binary.dev`, a label and a sentence a line.
        num_samples: Most chats for training.
        num_validation_samples: Most chats for validation.

    Returns:
        The data sets `"train"` and `"validation"`.

    Raises:
        OSError: If a file is missing.
    """

    def read(name: str) -> list[tuple[str, str]]:
        lines = (line.partition(" ") for line in _text(folder, name).splitlines())
        question = "Is this review positive or negative?"
        return [(f"{question}\n{text}", _OPINIONS[int(label)]) for label, _, text in lines]

    parts = {"train": read("stsa.binary.train"), "validation": read("stsa.binary.dev")}
    return _chats(parts, num_samples, num_validation_samples)


def _text(folder: str, name: str) -> str:
    return (Path(local_path(folder)) / name).read_text(encoding="utf-8")


def _chats(parts: dict[str, list[tuple[str, str]]], num_samples: int, num_validation_samples: int) -> Rows:
    """Takes as many chats of each split, of all kinds: in the order of their keys."""
    taken = {"train": num_samples, "validation": num_validation_samples}
    chosen = {split: sorted(parts[split], key=lambda pair: key_of(pair[0]))[:most] for split, most in taken.items()}
    return {split: datasets.Dataset.from_list([chat_of(*pair) for pair in pairs]) for split, pairs in chosen.items()}
