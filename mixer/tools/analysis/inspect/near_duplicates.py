"""Near-duplicates across streams, and between training and evaluation, by MinHash."""

import importlib.util
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

from mixer.tools.analysis.inspect.duplicates import Overlap, Part

SIMILARITY = 0.8  # share of the sequences of five tokens or words that two samples have in common
_CANDIDATES = 0.5  # of the index, which misses few that are much nearer
_NUM_PERMUTATIONS = 128
_LENGTH = 5


def can_find() -> bool:
    """Whether datasketch is installed."""
    return importlib.util.find_spec("datasketch") is not None


def units_of(sample: Any) -> list[str]:
    """Returns the tokens of a sample; without any, the words of its texts."""
    if isinstance(sample, Mapping) and "input_ids" in sample:
        return [str(token) for token in sample["input_ids"]]
    if isinstance(sample, Mapping):
        sample = list(sample.values())
    texts = sample if isinstance(sample, list) else [sample]
    return [word for text in texts for word in str(text).split()]


def find_near(parts: Sequence[Part]) -> list[Overlap]:
    """Counts the samples of each part that are near one of another part that is trained on; equal ones count too.

    Args:
        parts: The parts, with the tokens or words of their samples.

    Returns:
        The overlaps, without empty ones.
    """
    from datasketch import MinHashLSH

    parts = [part for part in parts if part.contents]
    signatures = [[_signature(sample) for sample in part.contents] for part in parts]
    overlaps = []
    for trained, of_trained in zip(parts, signatures, strict=True):
        if trained.is_validation:
            continue
        index = MinHashLSH(threshold=_CANDIDATES, num_perm=_NUM_PERMUTATIONS)
        for number, signature in enumerate(of_trained):
            index.insert(number, signature)
        for part, own in zip(parts, signatures, strict=True):
            if part is trained or part.kind != trained.kind:
                continue
            near = (any(one.jaccard(of_trained[other]) >= SIMILARITY for other in index.query(one)) for one in own)
            if number := sum(near):
                shown = (number, len(own), number / len(own), part.is_whole and trained.is_whole)
                overlaps.append(Overlap(part.stream, part.is_validation, trained.stream, part.kind, *shown))
    return overlaps


def _signature(units: Sequence[str]) -> Any:
    from datasketch import MinHash

    signature = MinHash(num_perm=_NUM_PERMUTATIONS, seed=1, hashfunc=zlib.crc32)
    starts = range(max(1, len(units) - _LENGTH + 1))
    signature.update_batch([" ".join(units[start : start + _LENGTH]).encode() for start in starts])
    return signature
