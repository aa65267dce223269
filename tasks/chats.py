"""Chats made of what Python and NumPy carry: code and what it does, examples and their results, names, error codes.

An answer that is a sentence is checked by its words, any other exactly.
"""

import ast
import doctest
import errno
import os
import sysconfig
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from mixer.utils.errors import wrong_value
from tasks.text_domains import NO_SOURCES, VALIDATION_SHARE, key_of, manual_topics, read_texts, split_of

_SENTENCE = range(25, 121)  # characters of a docstring's first sentence
_CODE = range(60, 401)  # characters of a function without its docstring
_EXAMPLES = range(1, 5)  # what a result may depend on
_RESULT = 60  # characters
_PARAGRAPH = range(200, 801)  # characters
_CHARACTERS = range(0xA1, 0x3000)

Rows = dict[str, datasets.Dataset]  # by split


def docstrings(num_samples: int = 1_000, num_validation_samples: int = 50) -> Rows:
    """Functions of the standard library and NumPy, each with the sentence that its docstring begins with.

    Args:
        num_samples: Chats for training.
        num_validation_samples: Chats for validation, of other files.

    Returns:
        The data sets `"train"` and `"validation"`.

    Raises:
        ValueError: If there are fewer than that.
    """

    def pairs(node: ast.AST, lines: Sequence[str]) -> Iterator[tuple[str, str]]:
        sentence = _first_sentence(node)
        if isinstance(node, ast.FunctionDef) and len(sentence) in _SENTENCE and len(node.body) > 1:
            docstring = node.body[0]
            before, after = lines[node.lineno - 1 : docstring.lineno - 1], lines[docstring.end_lineno : node.end_lineno]
            code = "\n".join([*before, *after])
            if len(code) in _CODE:
                yield f"What does this function do?\n{code}", sentence

    return _split("docstrings", _of_files(pairs), num_samples, num_validation_samples)


def examples(num_samples: int = 1_000, num_validation_samples: int = 50) -> Rows:
    """Examples in docstrings of the standard library and NumPy, each with the line that Python prints.

    Args:
        num_samples: Chats for training.
        num_validation_samples: Chats for validation, of other files.

    Returns:
        The data sets `"train"` and `"validation"`.

    Raises:
        ValueError: If there are fewer than that.
    """

    def pairs(node: ast.AST, _lines: Sequence[str]) -> Iterator[tuple[str, str]]:
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef):
            yield from _results(ast.get_docstring(node) or "")

    return _split("examples", _of_files(pairs), num_samples, num_validation_samples)


def characters(num_samples: int = 1_000, num_validation_samples: int = 50) -> Rows:
    """Characters beyond ASCII, each with its name in Unicode.

    Args:
        num_samples: Chats for training.
        num_validation_samples: Chats for validation.

    Returns:
        The data sets `"train"` and `"validation"`.

    Raises:
        ValueError: If there are fewer than that.
    """
    names = ((chr(code), unicodedata.name(chr(code), "")) for code in _CHARACTERS)
    chats = ((key_of(name), f"Which character is {character}?", name) for character, name in names if name)
    return _split("characters", sorted(chats), num_samples, num_validation_samples)


def error_codes(num_samples: int = 80, num_validation_samples: int = 20) -> Rows:
    """The error codes of this system, each with what it means.

    Args:
        num_samples: Chats for training.
        num_validation_samples: Chats for validation.

    Returns:
        The data sets `"train"` and `"validation"`.

    Raises:
        ValueError: If there are fewer than that.
    """
    chats = ((key_of(name), f"What does {name} mean?", os.strerror(code)) for code, name in errno.errorcode.items())
    return _split("error codes", sorted(chats), num_samples, num_validation_samples, share=0.2)


def manual(num_samples: int = 400, num_validation_samples: int = 40) -> Rows:
    """Paragraphs of Python's manual, as `help()` shows them: prose, no chats.

    Args:
        num_samples: Paragraphs for training.
        num_validation_samples: Paragraphs for validation, of other topics.

    Returns:
        The data sets `"train"` and `"validation"`, rows of `text`.

    Raises:
        ValueError: If there are fewer than that.
    """
    paragraphs = [(key, " ".join(part.split())) for key, text in manual_topics() for part in text.split("\n\n")]
    rows = ((key, part, {"text": part}) for key, part in paragraphs if len(part) in _PARAGRAPH and "::=" not in part)
    return rows_by_split("paragraphs", rows, num_samples, num_validation_samples)


def _of_files(pairs: Callable[[ast.AST, Sequence[str]], Iterator[tuple[str, str]]]) -> Iterator[tuple[float, str, str]]:
    """Yields the chats of all files, with the key of their file, which decides the split.

    Args:
        pairs: Yields the questions and answers of a node of a file's syntax tree, given the file's lines.
    """
    roots = (Path(sysconfig.get_paths()["stdlib"]), Path(str(np.__file__)).parent)
    for key, text in read_texts(roots, "*.py", NO_SOURCES):
        try:
            lines = text.splitlines()
            found = [pair for node in ast.walk(ast.parse(text)) for pair in pairs(node, lines)]
        except (SyntaxError, ValueError):  # a file for another version of Python
            continue
        yield from ((key, question, answer) for question, answer in found)


def _first_sentence(node: ast.AST) -> str:
    if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
        return ""
    paragraph = " ".join((ast.get_docstring(node) or "").strip().partition("\n\n")[0].split())
    return paragraph if paragraph.endswith(".") else ""


def _results(docstring: str) -> Iterator[tuple[str, str]]:
    """Yields the examples that print one line, with those before them in the same paragraph."""
    shown: list[doctest.Example] = []
    for part in doctest.DocTestParser().parse(docstring) if ">>>" in docstring else ():
        if isinstance(part, str):
            shown = shown if not part.strip() else []
            continue
        shown.append(part)
        result = part.want.strip()
        if 0 < len(result) <= _RESULT and "\n" not in result and len(shown) in _EXAMPLES:
            before = "".join(f">>> {example.source}{example.want}" for example in shown[:-1])
            yield f"What does Python print?\n{before}>>> {part.source}".rstrip(), result


def _split(
    what: str,
    chats: Iterable[tuple[float, str, str]],
    num_samples: int,
    num_validation_samples: int,
    share: float = VALIDATION_SHARE,
) -> Rows:
    rows = ((key, question, chat_of(question, answer)) for key, question, answer in chats)
    return rows_by_split(what, rows, num_samples, num_validation_samples, share)


def chat_of(question: str, answer: str) -> dict[str, Any]:
    """Returns a question and its answer as a row of `messages`."""
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]}


def rows_by_split(
    what: str,
    rows: Iterable[tuple[float, str, dict[str, Any]]],
    num_samples: int,
    num_validation_samples: int,
    share: float = VALIDATION_SHARE,
) -> Rows:
    """Takes as many rows of each split as are wanted, none twice.

    Args:
        what: What the rows are, for errors.
        rows: The key of each row's file, which decides the split; what tells the row from others; and the row.
        num_samples: Rows for training.
        num_validation_samples: Rows for validation.
        share: Share of the keys that are for validation.

    Returns:
        The data sets `"train"` and `"validation"`.

    Raises:
        ValueError: If there are fewer than that.
    """
    wanted = {"train": num_samples, "validation": num_validation_samples}
    found: dict[str, list[dict[str, Any]]] = {split: [] for split in wanted}
    seen = set[str]()
    for key, question, row in rows:
        split = split_of(key, share)
        if question not in seen and len(found[split]) < wanted[split]:
            seen.add(question)
            found[split].append(row)
        elif all(len(found[name]) == wanted[name] for name in wanted):
            break
    for split, name in (("train", "num_samples"), ("validation", "num_validation_samples")):
        if len(found[split]) < wanted[split]:
            text = f"must be at most {len(found[split]):,}, the {what} that are there, got {wanted[split]:,}."
            raise wrong_value(name, text, found=wanted[split])
    return {split: datasets.Dataset.from_list(own) for split, own in found.items()}
