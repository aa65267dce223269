"""What the recipes of `benchmarks.quality` read, each stream in three parts that share no text.

`train` is trained on; `validation` is shown to policies that follow evaluations, and chooses among fixed mixtures;
`test` is what all are judged by, and no policy sees. Which part a text belongs to is a hash of its letters and digits:
the same on every machine, and a sentence that two tasks have (SST-2 is made of MR's) is held out of both.
"""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch.utils.data import Dataset

from tasks.text_domains import ByteBlocks, cpp_headers, english_docstrings, python_source

PARTS = ("train", "validation", "test")
Splits = Mapping[str, Dataset[Any]]

_BOUNDS = (0.80, 0.88, 1.0)  # of the hash: where the parts end
_SPREAD = 8  # one in so many held-out blocks is taken: few blocks in a row would be of one or two files
_NUM_HELD = 256  # blocks for validation, and for the test, of what is made up
_NUM_BUILT_IN = 6_000  # blocks of a built-in text that are read at once: reading takes seconds
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


def blocks(
    name: str,
    folder: str | None = None,
    num_samples: int | None = None,
    num_validation: int = 256,
    num_test: int = 256,
    length: int = 64,
) -> Splits:
    """Reads text of a kind as blocks of bytes. Files, speeches, articles and sentences are held out whole.

    Args:
        name: `"python"`, `"cpp"` or `"english"`, which are built in; `"shakespeare"`, `"wikipedia"`, `"requests"` (to
            an assistant) or `"reviews"`, which are read from files.
        folder: The data's folder, for files.
        num_samples: Most blocks to train on; `None` for 6,000 of a built-in text, and all of a file.
        num_validation: Most blocks for validation.
        num_test: Most blocks to test on.
        length: Bytes of a block.

    Returns:
        The parts.

    Raises:
        FileNotFoundError: If a file is missing.
        ValueError: If there is too little text, or no folder for a text from files.
    """
    if name in _DOMAINS:
        wanted = max(_NUM_BUILT_IN, num_samples or 0)
        found = _domain(name, wanted, num_validation, num_test, length)
        num_samples = num_samples or _NUM_BUILT_IN
    elif folder is None:
        raise ValueError(f"{name} is read from files: give folder, that of the data.")
    else:
        found = _text_blocks(name, folder, num_validation, num_test, length)
    return {**found, "train": _of(_bytes(found["train"])[:num_samples])}


def made_up(
    seed: int, low: int = 32, high: int = 127, period: int | None = None, num_samples: int = 4_000, length: int = 64
) -> Splits:
    """Makes blocks of random bytes: junk, or what is soon learned if they repeat.

    Args:
        seed: Seed of the bytes.
        low: Least byte.
        high: End of the bytes, which is not drawn.
        period: Bytes until a block repeats; `None` for never.
        num_samples: Blocks to train on.
        length: Bytes of a block.

    Returns:
        The parts.
    """
    count, period = num_samples + 2 * _NUM_HELD, period or length
    drawn = np.random.default_rng(seed).integers(low, high, (count, period))
    values = np.tile(drawn, -(-length // period))[:, :length]
    parts = np.split(values, [num_samples, count - _NUM_HELD])
    return {part: _of(own) for part, own in zip(PARTS, parts, strict=True)}


def garbled(source: Mapping[str, Any], seed: int, share: float = 1.0) -> Splits:
    """Shuffles the bytes within blocks.

    Args:
        source: Arguments of `blocks`.
        seed: Seed of the order.
        share: Share of the blocks.

    Returns:
        The parts.
    """
    generator, found = np.random.default_rng(seed), {}
    for part, whole in blocks(**source).items():
        own = _bytes(whole).copy()
        chosen = generator.random(len(own)) < share
        own[chosen] = generator.permuted(own[chosen], axis=1)
        found[part] = _of(own)
    return found


def ciphered(source: Mapping[str, Any], seed: int) -> Splits:
    """Exchanges small letters for others: what is learned of the plain text is wrong here.

    Args:
        source: Arguments of `blocks`.
        seed: Seed of the exchange.

    Returns:
        The parts.
    """
    code, letters = np.arange(256, dtype=np.uint8), np.arange(ord("a"), ord("z") + 1)
    code[letters] = np.random.default_rng(seed).permutation(letters)
    return {part: _of(code[_bytes(whole)]) for part, whole in blocks(**source).items()}


def slice_of(source: Mapping[str, Any], number: int, of: int) -> Splits:
    """Takes every so many training blocks; validation and test are those of the whole.

    Args:
        source: Arguments of `blocks`.
        number: Which slice, from 0.
        of: Number of slices.

    Returns:
        The parts.
    """
    whole = blocks(**source)
    return {**whole, "train": _of(_bytes(whole["train"])[number::of])}


def joined(sources: Sequence[Mapping[str, Any]]) -> Splits:
    """Joins sources to one.

    Args:
        sources: Arguments of `blocks`, for each.

    Returns:
        The parts.
    """
    read = [blocks(**source) for source in sources]
    return {part: _of(np.concatenate([_bytes(one[part]) for one in read])) for part in PARTS}


def leaked(source: Mapping[str, Any], num_copies: int) -> Splits:
    """Takes copies of the blocks for validation, some of which are development rows, as blocks to train on.

    Args:
        source: Arguments of `blocks`.
        num_copies: Copies of each.

    Returns:
        The parts.
    """
    whole = blocks(**source)
    return {**whole, "train": _of(np.tile(_bytes(whole["validation"]), (num_copies, 1)))}


def _bytes(dataset: Dataset[Any]) -> npt.NDArray[np.uint8]:
    assert isinstance(dataset, ByteBlocks)
    found: npt.NDArray[np.uint8] = dataset.blocks.numpy()
    return found


def _of(values: npt.NDArray[Any]) -> ByteBlocks:
    return ByteBlocks(values.astype(np.uint8))


@cache
def _domain(name: str, num_samples: int, num_validation: int, num_test: int, length: int) -> Splits:
    splits = _DOMAINS[name](num_samples, _SPREAD * (num_validation + num_test), length)
    held = splits["validation"].blocks.numpy()[::_SPREAD]
    # By turns: what holds for the development rows, such as a bound, holds for test rows only if they are alike.
    is_test = np.isin(np.arange(len(held)), np.linspace(0, len(held) - 1, num_test).astype(np.int64))
    return {"train": splits["train"], "validation": _of(held[~is_test]), "test": _of(held[is_test])}


@cache
def _text_blocks(name: str, folder: str, num_validation: int, num_test: int, length: int) -> Splits:
    texts: dict[str, list[str]] = {part: [] for part in PARTS}
    for own in _TEXTS[name](Path(folder)):
        texts[part_of(own)].append(own)
    most = {"train": None, "validation": num_validation, "test": num_test}
    return {part: _blocks(name, texts[part], length, most[part]) for part in PARTS}


def _blocks(name: str, texts: Sequence[str], block_length: int, most: int | None) -> ByteBlocks:
    whole = np.frombuffer("\n".join(texts).encode(), dtype=np.uint8)
    if len(whole) < block_length:
        raise ValueError(f"{name}: a part has {len(whole)} bytes, a block takes {block_length}. Give more text.")
    rows = whole[: len(whole) // block_length * block_length].reshape(-1, block_length)
    if most is not None and len(rows) > most:
        rows = rows[np.linspace(0, len(rows) - 1, most).astype(np.int64)]
    # Few texts are as long as a block, and those of SUBJ come sorted by class; the trainer shuffles blocks.
    return _of(rows)


def _articles(folder: Path) -> list[str]:
    texts = [read_text(folder / "lm" / f"wikitext2-{part}.txt") for part in ("valid", "test")]
    return [article for text in texts for article in re.split(r"(?m)^(?= = [^=\n]+ = $)", text) if article.strip()]


def _requests(folder: Path) -> list[str]:
    requests = json.loads(read_text(folder / "clinc150" / "data_full.json"))
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
        lines = read_text(folder / "text" / name, "latin-1" if name in _LATIN else "utf-8").split("\n")
        found += [(int(label), text) for label, _, text in (line.partition(" ") for line in lines) if text]
    return found


def read_text(path: Path, encoding: str = "utf-8") -> str:
    """Reads a file of the data.

    Args:
        path: The file.
        encoding: Its encoding.

    Returns:
        What it holds.

    Raises:
        FileNotFoundError: If it is missing.
    """
    if not path.is_file():
        raise FileNotFoundError(
            f"{path.name} is missing under {path.parent.name}/ of the data: give its folder, by --data-dir."
        )
    return path.read_bytes().decode(encoding)


_TEXTS: dict[str, Callable[[Path], Iterable[str]]] = {
    "shakespeare": lambda folder: read_text(folder / "lm" / "tinyshakespeare.txt").split("\n\n"),
    "wikipedia": _articles,
    "requests": _requests,
    "reviews": lambda folder: (own for name in ("mr", "subj") for _, own in labelled(folder, name)),
}
