"""Writes the data and the small models that the scripts and recipes run on here: `python -m examples.data [FOLDER]`.

Nothing is downloaded: questions and answers are made of the docstrings of NumPy, pandas and torch, text and lines of
code are those of `tasks.text_domains`, requests a part of CLINC150. The same versions of these give the same files.
"""

import argparse
import inspect
import json
import pkgutil
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from examples.models import write_base, write_encoder
from tasks.sources import clinc150
from tasks.text_domains import cpp_headers, english_docstrings, python_source

INTENTS = Path(__file__).with_name("data_files") / "clinc150_subset"
CHATS = {
    "numpy": ("numpy", "numpy.linalg", "numpy.fft", "numpy.random", "numpy.strings"),
    "pandas": ("pandas", "pandas.DataFrame", "pandas.Series", "pandas.Index", "pandas.api.types"),
    "torch": ("torch", "torch.nn", "torch.nn.functional", "torch.linalg", "torch.optim"),
}
TOPICS = {
    "arrays": ("numpy", "numpy.ndarray"),
    "tables": ("pandas.DataFrame", "pandas.Series"),
    "tensors": ("torch", "torch.Tensor"),
    "layers": ("torch.nn", "torch.nn.functional"),
    "random numbers": ("numpy.random", "torch.distributions"),
}
TEXTS = {"python": python_source, "cpp": cpp_headers, "english": english_docstrings}
NUM_TEXT_BLOCKS, NUM_VALIDATION_BLOCKS, BLOCK_BYTES = 3_000, 300, 128
NUM_LINES = 400  # of each language to classify


def main() -> None:
    """Writes everything into the folder."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", nargs="?", type=Path, default=Path("data/examples"), help="Where to write.")
    parser.add_argument("--base_steps", type=int, default=400, help="Steps that the base language model is trained.")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    print(f"Writes data, a tokenizer and two small models into {options.folder}, in about a minute on an idle machine.")
    # What is cut off leaves nothing behind: a folder comes whole.
    with tempfile.TemporaryDirectory(dir=options.folder) as partial:
        _write(Path(partial), options.base_steps)
        for part in sorted(Path(partial).iterdir()):
            shutil.rmtree(options.folder / part.name, ignore_errors=True)
            part.rename(options.folder / part.name)
    for path in sorted(path for path in options.folder.rglob("*") if path.is_file()):
        print(f"{path.stat().st_size:>10,}  {path}")


def _write(folder: Path, base_steps: int) -> None:
    texts = {name: read(NUM_TEXT_BLOCKS, NUM_VALIDATION_BLOCKS, BLOCK_BYTES) for name, read in TEXTS.items()}
    split_texts = {name: {split: _text(part) for split, part in parts.items()} for name, parts in texts.items()}
    _write_chats(folder / "chat")
    _write_pairs(folder / "pairs")
    _write_texts(folder / "text", split_texts)
    _write_labelled(folder / "classification", {name: parts["train"] for name, parts in split_texts.items()})
    write_base(folder / "base", folder, base_steps)
    write_encoder(folder / "encoder", folder / "base")


def _write_chats(folder: Path) -> None:
    """Writes conversations of one question and its answer, a file for each library."""
    for library, modules in CHATS.items():
        rows = (
            {
                "messages": [
                    {"role": "user", "content": f"What does {name} do?"},
                    {"role": "assistant", "content": said},
                ]
            }
            for name, said in _described(modules).items()
        )
        _write_lines(folder / f"{library}.jsonl", rows)


def _write_pairs(folder: Path) -> None:
    """Writes pairs of a function's name in words and what is said of it, a file for each library."""
    for library, modules in CHATS.items():
        words = {name: re.sub(r"[._]+", " ", name) for name in _described(modules)}
        rows = ({"question": words[name], "answer": said} for name, said in _described(modules).items())
        _write_lines(folder / f"{library}.jsonl", rows)


def _write_texts(folder: Path, texts: Mapping[str, Mapping[str, str]]) -> None:
    """Writes English with a paragraph a line, and Python with a top-level definition a row, in two splits each."""
    for split in ("train", "validation"):
        paragraphs = (" ".join(paragraph.split()) for paragraph in texts["english"][split].split("\n\n"))
        path = folder / "english" / f"{split}.txt"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{paragraph}\n" for paragraph in paragraphs if len(paragraph) > 60), encoding="utf-8")
        definitions = (part.strip("\n") for part in texts["python"][split].split("\n\n\n"))
        rows = ({"text": definition} for definition in definitions if len(definition) > 60)
        _write_lines(folder / "python" / f"{split}.jsonl", rows)


def _write_labelled(folder: Path, texts: Mapping[str, str]) -> None:
    """Writes three tasks of classification, each in a format of its own."""
    folder.mkdir(parents=True, exist_ok=True)
    said = ((text, topic) for topic, modules in TOPICS.items() for text in _described(modules).values())
    pd.DataFrame(said, columns=["text", "label"]).to_csv(folder / "topic.csv", index=False)
    lines = ({"text": line, "label": name} for name, text in texts.items() for line in _lines(text))
    _write_lines(folder / "language.jsonl", lines)
    requests = clinc150(INTENTS).train
    table = {"text": list(requests["text"]), "label": list(requests["domain"])}
    pd.DataFrame(table).to_parquet(folder / "domain.parquet", index=False)


def _described(modules: Iterable[str]) -> dict[str, str]:
    """Gives the first paragraph about each function and class, by full name; none twice."""
    found: dict[str, str] = {}
    for module in modules:
        for name, member in _members(pkgutil.resolve_name(module)):
            said = _first_paragraph(inspect.getdoc(member) or "")
            if 30 <= len(said) <= 240 and said not in found.values():
                found[f"{module}.{name}"] = said
    return found


def _members(owner: Any) -> Iterator[tuple[str, Any]]:
    for name in sorted(dir(owner)):
        member = getattr(owner, name, None)
        if not name.startswith("_") and callable(member):
            yield name, member


def _first_paragraph(documentation: str) -> str:
    for paragraph in documentation.split("\n\n"):
        words = " ".join(paragraph.split())
        if re.match(r"[\w.]+\(|\.\.", words) or "->" in words:
            continue  # a signature, or a directive of Sphinx
        return re.sub(r":\w+:`~?([^`]*)`", r"\1", words)
    return ""


def _text(blocks: Any) -> str:
    return bytes(blocks.blocks.flatten().numpy()).decode(errors="ignore")


def _lines(text: str) -> list[str]:
    """Picks lines from all over a text, none twice."""
    found = list(dict.fromkeys(line.strip() for line in text.splitlines() if 30 <= len(line.strip()) <= 100))
    return found[:: max(len(found) // NUM_LINES, 1)][:NUM_LINES]


def _write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
