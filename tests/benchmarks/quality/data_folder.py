"""A data folder of made-up text, with every file that the mixtures read."""

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


def sentences(count: int, seed: int) -> list[str]:
    generator = np.random.default_rng(seed)
    return [" ".join(f"word{number}" for number in row) for row in generator.integers(0, 50, size=(count, 6))]


def make_data(folder: Path) -> Path:
    for seed, (name, num_classes) in enumerate(_FILES.items()):
        lines = [f"{number % num_classes} {text}\n" for number, text in enumerate(sentences(80, seed))]
        (folder / "text").mkdir(exist_ok=True)
        (folder / "text" / name).write_text("".join(lines))
    (folder / "lm").mkdir()
    (folder / "lm" / "tinyshakespeare.txt").write_text("\n\n".join(sentences(80, 20)))
    for seed, part in ((21, "valid"), (22, "test")):
        articles = [f" = Title {number} = \n {text} \n" for number, text in enumerate(sentences(60, seed))]
        (folder / "lm" / f"wikitext2-{part}.txt").write_text("".join(articles))
    requests = {part: [[text, "intent"] for text in sentences(40, seed)] for seed, part in enumerate(("train", "val"))}
    (folder / "clinc150").mkdir()
    (folder / "clinc150" / "data_full.json").write_text(json.dumps({**requests, "test": requests["val"]}))
    return folder
