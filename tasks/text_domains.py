"""Text of the local machine as byte-level language modelling data: Python, C++, English, and junk."""

import ast
import fnmatch
import hashlib
import os
import sysconfig
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from pydoc_data.topics import topics

import numpy as np
import numpy.typing as npt
import pandas as pd
import torch
from torch.utils.data import Dataset

from mixer.utils.arrays import Int64Array
from mixer.utils.errors import InvalidValueError

NO_SOURCES = frozenset({"test", "tests", "site-packages", "dist-packages", "idlelib", "__pycache__"})
VALIDATION_SHARE = 1 / 12


class ByteBlocks(Dataset[dict[str, torch.Tensor]]):
    """Text as blocks of bytes for a byte-level language model: `input_ids` and equal `labels`, int64 `[block_length]`.

    Args:
        blocks: uint8 `[num_blocks, block_length]`.
    """

    def __init__(self, blocks: npt.NDArray[np.uint8]):
        self.blocks = torch.from_numpy(blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        ids = self.blocks[index].long()
        return {"input_ids": ids, "labels": ids}

    def read_columns(self, indices: Int64Array) -> dict[str, torch.Tensor]:
        """Reads several blocks at once; see `mixer.loading.reader.ColumnReader`.

        Args:
            indices: int64 `[count]`: which ones.

        Returns:
            The columns, int64 `[count, block_length]` each.
        """
        ids = self.blocks.index_select(0, torch.from_numpy(indices)).long()
        return {"input_ids": ids, "labels": ids.clone()}


Blocks = dict[str, ByteBlocks]  # by split


def python_source(num_samples: int = 2_000, num_validation_samples: int = 100, block_length: int = 128) -> Blocks:
    """Python source code of the standard library.

    Args:
        num_samples: Blocks for training.
        num_validation_samples: Blocks for validation, from other files.
        block_length: Bytes of a block.

    Returns:
        The data sets `"train"` and `"validation"`.

    Raises:
        ValueError: If there is less text than that.
    """
    texts = read_texts([Path(sysconfig.get_paths()["stdlib"])], "*.py", NO_SOURCES)
    return _split("Python source", texts, num_samples, num_validation_samples, block_length)


def cpp_headers(num_samples: int = 2_000, num_validation_samples: int = 100, block_length: int = 128) -> Blocks:
    """C++ headers of the torch package.

    Args:
        num_samples: Blocks for training.
        num_validation_samples: Blocks for validation, from other files.
        block_length: Bytes of a block.

    Returns:
        The data sets `"train"` and `"validation"`.

    Raises:
        ValueError: If there is less text than that.
    """
    texts = read_texts([Path(torch.__file__).parent / "include"], "*.h")
    return _split("C++ headers", texts, num_samples, num_validation_samples, block_length)


def english_docstrings(num_samples: int = 2_000, num_validation_samples: int = 100, block_length: int = 128) -> Blocks:
    """English prose: the docstrings of the standard library, NumPy, pandas and torch.

    Args:
        num_samples: Blocks for training.
        num_validation_samples: Blocks for validation, from other files.
        block_length: Bytes of a block.

    Returns:
        The data sets `"train"` and `"validation"`.

    Raises:
        ValueError: If there is less text than that.
    """
    packages = (Path(str(package.__file__)).parent for package in (np, pd, torch))
    roots = [Path(sysconfig.get_paths()["stdlib"]), *packages]
    texts = read_texts(roots, "*.py", NO_SOURCES)
    return _split("English docstrings", texts, num_samples, num_validation_samples, block_length, _docstrings)


def python_manual(num_samples: int = 2_000, num_validation_samples: int = 100, block_length: int = 128) -> Blocks:
    """English prose: the topics of Python's manual, as `help()` shows them.

    Args:
        num_samples: Blocks for training.
        num_validation_samples: Blocks for validation, from other topics.
        block_length: Bytes of a block.

    Returns:
        The data sets `"train"` and `"validation"`.

    Raises:
        ValueError: If there is less text than that.
    """
    return _split("Python's manual", manual_topics(), num_samples, num_validation_samples, block_length)


def random_text(
    num_samples: int = 2_000, num_validation_samples: int = 100, block_length: int = 128, seed: int = 0
) -> Blocks:
    """Junk: printable characters in no order.

    Args:
        num_samples: Blocks for training.
        num_validation_samples: Blocks for validation.
        block_length: Bytes of a block.
        seed: Seed of the characters.

    Returns:
        The data sets `"train"` and `"validation"`.
    """
    shape = num_samples + num_validation_samples, block_length
    blocks = np.random.default_rng(seed).integers(32, 127, shape, dtype=np.uint8)
    return {"train": ByteBlocks(blocks[:num_samples]), "validation": ByteBlocks(blocks[num_samples:])}


def read_texts(
    roots: Iterable[Path], pattern: str, excluded: frozenset[str] = frozenset()
) -> Iterator[tuple[float, str]]:
    """Reads files in the order of their keys, hashes of their places under the root in [0, 1): the same anywhere.

    Args:
        roots: Folders.
        pattern: Which files below them.
        excluded: Names of folders to leave out.

    Yields:
        The key of a file, and its text if there is any.
    """
    keyed = []
    for root in roots:
        for folder, folders, files in os.walk(root):
            folders[:] = [name for name in folders if name not in excluded]
            place = Path(folder).relative_to(root.parent).as_posix()
            keyed += [(key_of(f"{place}/{name}"), Path(folder, name)) for name in fnmatch.filter(files, pattern)]
    for key, path in sorted(keyed):
        try:
            text = path.read_text(encoding="utf-8")
        except (UnicodeDecodeError, OSError):
            continue  # a file in another encoding
        if text:
            yield key, text


def manual_topics() -> list[tuple[float, str]]:
    """Returns the topics of Python's manual in the order of their keys."""
    return sorted((key_of(f"topics/{name}"), text) for name, text in topics.items())


def key_of(name: str) -> float:
    """Returns a number in [0, 1) by the hash of a name."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=6).digest(), "big") / 2**48


def split_of(key: float, share: float = VALIDATION_SHARE) -> str:
    """Returns the split of a file: as files come in the order of their keys, the last digits decide."""
    return "validation" if (key * 1e6) % 1.0 < share else "train"


def _docstrings(text: str) -> str:
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    try:
        tree = ast.parse(text)
    except SyntaxError:  # a file for another version of Python
        return ""
    found = (ast.get_docstring(node) or "" for node in ast.walk(tree) if isinstance(node, kinds))
    return "\n\n".join(docstring for docstring in found if len(docstring) > 80)


def _split(
    what: str,
    texts: Iterable[tuple[float, str]],
    num_samples: int,
    num_validation_samples: int,
    block_length: int,
    extract: Callable[[str], str] = str,
) -> Blocks:
    wanted = {"train": num_samples * block_length, "validation": num_validation_samples * block_length}
    buffers = {split: bytearray() for split in wanted}
    for key, text in texts:
        split = split_of(key)
        if len(buffers[split]) < wanted[split]:
            buffers[split] += f"{found}\n".encode() if (found := extract(text)) else b""
        elif all(len(buffers[name]) >= wanted[name] for name in wanted):
            break
    for split, size in wanted.items():
        if len(buffers[split]) < size:
            raise InvalidValueError.about(
                "num_samples",
                f"needs {size:,} bytes of {split}, of which {what} has {len(buffers[split]):,}: lower it.",
            )
    return {
        split: ByteBlocks(np.frombuffer(bytes(buffers[split][:size]), dtype=np.uint8).reshape(-1, block_length).copy())
        for split, size in wanted.items()
    }
