"""Files of tokens as pre-training has them: flat arrays, and the `.bin` and `.idx` of Megatron-LM."""

import os
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mixer.models.labels import IGNORED
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import wrong_value
from mixer.utils.ranges import check_count

_MAGIC = b"MMIDIDX\x00\x00"
# Of Megatron-LM's index: the number of a type in its header.
_TYPES = {1: "uint8", 2: "int8", 3: "int16", 4: "int32", 5: "int64", 8: "uint16"}


class TokenFile:
    """A file of tokens as a map-style data set of blocks, read from disk where they are needed.

    Block `i` has the tokens from `i · sequence_length` on, in the order of the file; a rest at its end that fills no
    block is left out. A run resumes at any block without reading the ones before.

    Args:
        path: `NAME.bin` of Megatron-LM with `NAME.idx` beside it, or a flat array of tokens (nanoGPT).
        sequence_length: Tokens of a block.
        dtype: Type of a flat array's tokens, `"uint16"` or `"uint32"`; that of Megatron's files is in the `.idx`.
        separate_documents: Whether the first token of each document is not learned, as it does not follow from the
            document before. Needs an `.idx`.

    Attributes:
        num_tokens: Tokens of the file.
        document_starts: int64 `[num_documents]`: position of each document's first token; `None` for a flat file.

    Raises:
        FileNotFoundError: If there is no such file.
        ValueError: If the file is no whole number of tokens, shorter than a block, or does not fit its index; or an
            argument is wrong.

    Example:
        `Stream("web", TokenFile("web_text_document.bin", 2048))`
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        sequence_length: int,
        dtype: str | None = None,
        separate_documents: bool = False,
    ):
        self.path, self.separate_documents = Path(path), separate_documents
        check_count("sequence_length", sequence_length, 2, "a block of one token has nothing to learn")
        self.sequence_length = sequence_length
        if not self.path.is_file():
            raise FileNotFoundError(f"TokenFile: there is no file {str(self.path)!r}.")
        index = self.path.with_suffix(".idx")
        has_index = self.path.suffix == ".bin" and index.is_file()
        _check_arguments(self.path, index if has_index else None, dtype, separate_documents)
        size = self.path.stat().st_size
        self.document_starts: Int64Array | None = None
        if has_index:
            self.dtype, self.num_tokens, self.document_starts = _read_index(index)
        else:
            self.dtype = str(dtype)
            self.num_tokens = size // np.dtype(self.dtype).itemsize
        if size != self.num_tokens * np.dtype(self.dtype).itemsize:
            raise wrong_value(
                "path", f"={str(self.path)!r} has {size} bytes, but must have {self.num_tokens} tokens of {self.dtype}."
            )
        if len(self) == 0:
            raise wrong_value(
                "path",
                f"={str(self.path)!r} has {self.num_tokens} tokens, fewer than sequence_length={sequence_length}.",
            )

    def __len__(self) -> int:
        """Returns the number of blocks."""
        return self.num_tokens // self.sequence_length

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Reads a block: `input_ids` and `labels`, int64 `[sequence_length]`; models shift the labels themselves."""
        if not -len(self) <= index < len(self):
            raise IndexError(f"{str(self.path)!r} has {len(self)} blocks, got the index {index}.")
        first = (index % len(self)) * self.sequence_length
        tokens = self._tokens[first : first + self.sequence_length].astype(np.int64)
        labels = tokens.copy()
        if self.separate_documents and self.document_starts is not None:
            low, high = np.searchsorted(self.document_starts, [first, first + self.sequence_length])
            labels[self.document_starts[low:high] - first] = IGNORED
        return {"input_ids": tokens, "labels": labels}

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Reads several blocks."""
        return [self[index] for index in indices]

    @cached_property
    def _tokens(self) -> NDArray[Any]:
        return np.memmap(self.path, self.dtype, mode="r")

    def __getstate__(self) -> dict[str, Any]:
        """Leaves the map of the file out: a copy in another process opens it anew."""
        return {name: value for name, value in self.__dict__.items() if name != "_tokens"}


def _check_arguments(path: Path, index: Path | None, dtype: str | None, separate_documents: bool) -> None:
    if index is not None:
        if dtype is not None:
            raise wrong_value("dtype", f"={dtype!r} is for flat files, and {index.name!r} has it: leave it out.")
        return
    if dtype not in ("uint16", "uint32"):
        raise wrong_value(
            "dtype", f"must be 'uint16' or 'uint32', the type of tokens in {path.name!r} without .idx, got {dtype!r}."
        )
    if separate_documents:
        raise wrong_value("separate_documents", f"needs an .idx, and {str(path)!r} has none: leave it out.")


def _read_index(path: Path) -> tuple[str, int, Int64Array]:
    """Reads an index of Megatron-LM (`IndexedDataset`, version 1).

    Returns:
        The type of the tokens, their number, and int64 `[num_documents]`: the position of each document's first token.
    """
    content = path.read_bytes()
    try:
        if not content.startswith(_MAGIC) or int.from_bytes(content[9:17], "little") != 1:
            raise ValueError("it is no index of version 1")
        dtype = _TYPES[content[17]]
        num_sequences, num_ends = np.frombuffer(content, np.int64, 2, 18).tolist()
        lengths = np.frombuffer(content, np.int32, num_sequences, 34).astype(np.int64)
        pointers = np.frombuffer(content, np.int64, num_sequences, 34 + 4 * num_sequences)
        ends = np.frombuffer(content, np.int64, num_ends, 34 + 12 * num_sequences)
        positions = np.concatenate([[0], np.cumsum(lengths)])
        if (lengths < 0).any() or (pointers != positions[:-1] * np.dtype(dtype).itemsize).any():
            raise ValueError("its sequences do not follow one another in the file")
        starts = np.unique(positions[ends])
    except (ValueError, KeyError, IndexError) as error:
        raise wrong_value(
            "path", f"TokenFile: {str(path)!r} is no index of Megatron-LM, or damaged ({error})."
        ) from None
    return dtype, int(positions[-1]), starts[starts < positions[-1]]
