"""A folder of made-up data, for runs that only show that a benchmark works."""

import json
from pathlib import Path

import numpy as np

_FILES = {
    "TREC.train.all": 6,
    "TREC.test.all": 6,
    "rt-polarity.all": 2,
    "subj.all": 2,
    "custrev.all": 2,
    "mpqa.all": 2,
    "stsa.binary.train": 2,
    "stsa.binary.dev": 2,
    "stsa.binary.test": 2,
}


_DOMAINS = {"bank": ["pay", "owe"], "trip": ["fly", "stay"]}


def sentences(count: int, seed: int) -> list[str]:
    """Makes sentences of six words up.

    Args:
        count: How many.
        seed: Seed of the words.

    Returns:
        The sentences.
    """
    generator = np.random.default_rng(seed)
    return [" ".join(f"word{number}" for number in row) for row in generator.integers(0, 50, size=(count, 6))]


def make_data(folder: Path) -> Path:
    """Writes the files that the real data sets come in: sentences by class, texts, and requests by intent.

    Args:
        folder: Where they are written.

    Returns:
        The same folder.
    """
    for name in ("text", "lm", "clinc150"):
        (folder / name).mkdir(parents=True)
    for seed, (name, num_classes) in enumerate(_FILES.items()):
        lines = [f"{number % num_classes} {text}\n" for number, text in enumerate(sentences(80, seed))]
        (folder / "text" / name).write_text("".join(lines))
    (folder / "lm" / "tinyshakespeare.txt").write_text("\n\n".join(sentences(80, 20)))
    for seed, part in ((21, "valid"), (22, "test")):
        articles = [f" = Title {number} = \n {text} \n" for number, text in enumerate(sentences(60, seed))]
        (folder / "lm" / f"wikitext2-{part}.txt").write_text("".join(articles))
    requests = {part: _requests(seed) for seed, part in enumerate(("train", "val"))}
    content = json.dumps({**requests, "test": requests["val"], "oos_test": [["hello", "oos"]]})
    (folder / "clinc150" / "data_full.json").write_text(content)
    (folder / "clinc150" / "domains.json").write_text(json.dumps(_DOMAINS))
    return folder


def _requests(seed: int) -> list[list[str]]:
    intents = [intent for own in _DOMAINS.values() for intent in own]
    return [[text, intents[number % len(intents)]] for number, text in enumerate(sentences(40, seed))]
