"""What the recipes of `benchmarks.quality` read, each stream in three parts that share no text.

`train` is trained on; `validation` is shown to policies that follow evaluations, and chooses among fixed mixtures;
`test` is what all are judged by, and no policy sees. Which part a text belongs to is a hash of its letters and digits:
the same on every machine, and a sentence that two tasks have (SST-2 is made of MR's) is held out of both.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from torch.utils.data import Dataset

from tasks.text_domains import ByteBlocks, cpp_headers, english_docstrings, python_source

PARTS = ("train", "validation", "test")
Splits = Mapping[str, Dataset[Any]]

_BOUNDS = (0.80, 0.88, 1.0)  # of the hash: where the parts end
_SPREAD = 8  # one in so many held-out blocks is taken: few blocks in a row would be of one or two files
_DOMAINS = {"python": python_source, "cpp": cpp_headers, "english": english_docstrings}
_SENTENCES = {
    "trec": ("TREC.train.all", "TREC.test.all"),
    "mr": ("rt-polarity.all",),
    "subj": ("subj.all",),
    "cr": ("custrev.all",),
    "mpqa": ("mpqa.all",),
    "sst2": ("stsa.binary.train", "stsa.binary.dev", "stsa.binary.test"),
}
_LATIN = frozenset({"TREC.train.all", "TREC.test.all", "rt-polarity.all", "subj.all"})


def part_of(text: str) -> str:
    """Says which part a text belongs to.

    Args:
        text: The text; case, punctuation and white space make no difference.

    Returns:
        `"train"` for four of five, `"validation"` for 8 % or `"test"` for 12 %.
    """
    plain = "".join(sign for sign in text.lower() if sign.isalnum())
    key = int.from_bytes(hashlib.blake2b(plain.encode(), digest_size=6).digest(), "big") / 2**48
    return next(part for part, bound in zip(PARTS, _BOUNDS, strict=True) if key < bound)


def domain(name: str, num_samples: int, num_validation: int, num_test: int, length: int) -> Splits:
    """Reads a built-in domain. Files are held out, not blocks of them.

    Args:
        name: `"python"`, `"cpp"` or `"english"`.
        num_samples: Blocks to train on.
        num_validation: Blocks for validation.
        num_test: Blocks to test on.
        length: Bytes of a block.

    Returns:
        The parts.
    """
    splits = _DOMAINS[name](num_samples, _SPREAD * (num_validation + num_test), length)
    held = splits["validation"].blocks.numpy()
    test, validation = held[: _SPREAD * num_test : _SPREAD], held[_SPREAD * num_test :: _SPREAD]
    return {"train": splits["train"], "validation": ByteBlocks(validation.copy()), "test": ByteBlocks(test.copy())}


def text(name: str, folder: str, num_validation: int, num_test: int, length: int) -> Splits:
    """Reads text of a kind, all there is to train on. Speeches, articles, requests and sentences are held out whole.

    Args:
        name: `"shakespeare"`, `"wikipedia"`, `"requests"` (to an assistant) or `"reviews"`.
        folder: The data's folder.
        num_validation: Most blocks for validation.
        num_test: Most blocks to test on.
        length: Bytes of a block.

    Returns:
        The parts.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If a part is shorter than a block.
    """
    texts: dict[str, list[str]] = {part: [] for part in PARTS}
    for own in _TEXTS[name](Path(folder)):
        texts[part_of(own)].append(own)
    most = {"train": None, "validation": num_validation, "test": num_test}
    return {part: _blocks(name, texts[part], length, most[part]) for part in PARTS}


def _blocks(name: str, texts: Sequence[str], block_length: int, most: int | None) -> ByteBlocks:
    joined = np.frombuffer("\n".join(texts).encode(), dtype=np.uint8)
    if len(joined) < block_length:
        raise ValueError(f"{name}: a part has {len(joined)} bytes, a block takes {block_length}. Give more text.")
    blocks = joined[: len(joined) // block_length * block_length].reshape(-1, block_length)
    if most is not None and len(blocks) > most:
        blocks = blocks[np.linspace(0, len(blocks) - 1, most).astype(np.int64)]
    # Few texts are as long as a block, and those of SUBJ come sorted by class; the trainer shuffles blocks.
    return ByteBlocks(blocks.copy())


def _articles(folder: Path) -> list[str]:
    texts = [_text(folder / "lm" / f"wikitext2-{part}.txt") for part in ("valid", "test")]
    return [article for text in texts for article in re.split(r"(?m)^(?= = [^=\n]+ = $)", text) if article.strip()]


def _requests(folder: Path) -> list[str]:
    requests = json.loads(_text(folder / "clinc150" / "data_full.json"))
    return [text for part in ("train", "val", "test") for text, _ in requests[part]]


def labelled(folder: Path, task: str) -> list[tuple[int, str]]:
    """Reads a task of sentence classification.

    Args:
        folder: The data's folder.
        task: One of trec, mr, subj, cr, mpqa and sst2.

    Returns:
        Labels and sentences.

    Raises:
        FileNotFoundError: If a file is missing.
    """
    found: list[tuple[int, str]] = []
    for name in _SENTENCES[task]:
        lines = _text(folder / "text" / name, "latin-1" if name in _LATIN else "utf-8").split("\n")
        found += [(int(label), text) for label, _, text in (line.partition(" ") for line in lines) if text]
    return found


def _text(path: Path, encoding: str = "utf-8") -> str:
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.name} is missing under {path.parent.name}/ of the data: give its folder, by --data-dir."
        )
    return path.read_bytes().decode(encoding)


_TEXTS: dict[str, Callable[[Path], Iterable[str]]] = {
    "shakespeare": lambda folder: _text(folder / "lm" / "tinyshakespeare.txt").split("\n\n"),
    "wikipedia": _articles,
    "requests": _requests,
    "reviews": lambda folder: (own for name in ("mr", "subj") for _, own in labelled(folder, name)),
}
