"""Source code that packages carry as rows of text: Python of the standard library, C++ of torch's headers."""

import sysconfig
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from tasks.chats import Rows, rows_by_split
from tasks.text_domains import NO_SOURCES, read_texts

_CHARACTERS = 1_000  # of a row


def python_code(num_samples: int = 400, num_validation_samples: int = 20) -> Rows:
    """Python of the standard library, in parts of about a thousand characters.

    Args:
        num_samples: Rows for training.
        num_validation_samples: Rows for validation, of other files.

    Returns:
        The data sets `"train"` and `"validation"`, rows of `text`.

    Raises:
        ValueError: If there are fewer than that.
    """
    texts = read_texts([Path(sysconfig.get_paths()["stdlib"])], "*.py", NO_SOURCES)
    return _split("parts of Python files", texts, num_samples, num_validation_samples)


def cpp_code(num_samples: int = 400, num_validation_samples: int = 20) -> Rows:
    """C++ of torch's headers, in parts of about a thousand characters.

    Args:
        num_samples: Rows for training.
        num_validation_samples: Rows for validation, of other files.

    Returns:
        The data sets `"train"` and `"validation"`, rows of `text`.

    Raises:
        ValueError: If there are fewer than that.
    """
    texts = read_texts([Path(str(torch.__file__)).parent / "include"], "*.h")
    return _split("parts of C++ headers", texts, num_samples, num_validation_samples)


def _split(what: str, texts: Iterator[tuple[float, str]], num_samples: int, num_validation_samples: int) -> Rows:
    parts = ((key, part) for key, text in texts for part in _parts(text.splitlines(keepends=True)))
    rows = ((key, part, {"text": part}) for key, part in parts)
    return rows_by_split(what, rows, num_samples, num_validation_samples)


def _parts(lines: Sequence[str]) -> Iterator[str]:
    part = ""
    for line in lines:
        if part and len(part) + len(line) > _CHARACTERS:
            yield part
            part = ""
        part += line
    if part.strip():
        yield part
