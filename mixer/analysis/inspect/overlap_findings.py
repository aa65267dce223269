"""What will hurt of samples that come more than once."""

from collections.abc import Iterator, Sequence

from mixer.analysis.inspect.duplicates import Overlap
from mixer.analysis.inspect.finding import Finding, count

MOST_REPEATED = 0.01  # share of a stream's samples
MOST_SHARED = 0.01  # share of one of two streams' samples


def overlap_findings(overlaps: Sequence[Overlap]) -> Iterator[Finding]:
    """Finds what will hurt of samples that come more than once.

    Args:
        overlaps: What overlaps.

    Yields:
        The findings: a validation sample that is trained on is one, whatever the share.
    """
    shares = {(one.stream, one.other): one.share for one in overlaps if not one.is_validation}
    for one in overlaps:
        if one.is_validation:
            yield _trained_on(one)
        elif one.is_within and one.share > MOST_REPEATED:
            yield _repeated(one)
        elif not one.is_within and one.share > MOST_SHARED and _is_greater(one, shares):
            yield _shared(one)


def _trained_on(one: Overlap) -> Finding:
    own = "its own training" if one.stream == one.other else f"the training of {one.other!r}"
    return Finding(
        "validation_in_training",
        list(dict.fromkeys((one.stream, one.other))),
        one.share,
        f"{_count(one)} of {one.stream!r} for validation are in {own} data too: the validation loss will flatter the "
        "model.",
    )


def _repeated(one: Overlap) -> Finding:
    return Finding(
        "repeated_samples",
        [one.stream],
        one.share,
        f"{_count(one)} of {one.stream!r} repeat an earlier one: they count more often than others.",
    )


def _shared(one: Overlap) -> Finding:
    return Finding(
        "shared_samples",
        [one.stream, one.other],
        one.share,
        f"{_count(one)} of {one.stream!r} are in {one.other!r} too: the weights of the two do not mean what they say.",
    )


def _is_greater(one: Overlap, shares: dict[tuple[str, str], float]) -> bool:
    """Says whether of the two ways to see what two streams share this is the one that is told."""
    own, other = one.share, shares.get((one.other, one.stream), 0.0)
    return own > other or (own == other and one.stream < one.other)


def _count(one: Overlap) -> str:
    least = "" if one.is_whole else "At least "
    return f"{least}{one.num_samples:,} of {count(one.num_looked_at, one.kind.removesuffix('s'))} ({one.share:.1%})"
