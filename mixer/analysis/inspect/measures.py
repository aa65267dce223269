"""What a part of the data is: the samples of a stream that are trained on, or those that it is evaluated on."""

from dataclasses import dataclass

from mixer.analysis.inspect.reading import Broken
from mixer.utils.arrays import Int64Array, UInt64Array


@dataclass(frozen=True)
class Limits:
    """What the model knows.

    Args:
        task: Its task.
        vocabulary: Number of tokens; `None` where that is not known.
        num_classes: Number of classes of the head that the samples go by; `None` where they have none.
        end: The token that a causal model stops by; `None` for another model, or where there is none.
        positions: The most tokens that it has positions for; `None` where there is no such number.
    """

    task: str
    vocabulary: int | None = None
    num_classes: int | None = None
    end: int | None = None
    positions: int | None = None


@dataclass
class Outside:
    """Samples with a number that the model does not know.

    Args:
        num_samples: How many they are.
        example: Index of the first one, and the number.
    """

    num_samples: int = 0
    example: tuple[int, int] | None = None

    def note(self, index: int, numbers: Int64Array, limit: int | None) -> None:
        """Looks at the numbers of a sample.

        Args:
            index: The sample.
            numbers: Its tokens or labels, without those that are left out.
            limit: How many there are; `None` for any.
        """
        if limit is None or not len(numbers) or (numbers.min() >= 0 and numbers.max() < limit):
            return
        self.num_samples += 1
        if self.example is None:
            self.example = index, int(numbers[(numbers < 0) | (numbers >= limit)][0])


@dataclass
class Measures:
    """What was measured of the samples that were looked at; 24 bytes for each of them.

    Args:
        size: How many samples there are; `None` where that is not known.
        num_read: How many were looked at.
        is_whole: Whether those are all.
        columns: The columns of the first sample; `None` where it is no mapping.
        unit: In what lengths are: tokens or characters; empty for neither.
        lengths: int64 `[num_read]`: the length of each; -1 where it has none.
        learns_tokens: Whether what is learned are tokens of the sample itself, and not something beside it.
        learned: int64 `[num_read]`: how many tokens or labels of each are learned; -1 where nobody can tell.
        digests: uint64 `[num_read]`: by what each is known again.
        num_with_end: In how many the token that ends a text is learned; `None` where there is none.
        classes: How often each class is a label, where there are classes.
        unknown_tokens: Samples with tokens beyond the vocabulary.
        unknown_labels: Samples with labels beyond the vocabulary or the classes.
        num_broken: How many cannot be read.
        broken: The first of those.
    """

    size: int | None
    num_read: int
    is_whole: bool
    columns: list[str] | None
    unit: str
    learns_tokens: bool
    lengths: Int64Array
    learned: Int64Array
    digests: UInt64Array
    num_with_end: int | None
    classes: dict[int, int]
    unknown_tokens: Outside
    unknown_labels: Outside
    num_broken: int
    broken: list[Broken]

    @property
    def known_lengths(self) -> Int64Array:
        """The lengths of samples that have one."""
        known: Int64Array = self.lengths[self.lengths >= 0]
        return known

    @property
    def share_learned(self) -> float | None:
        """The share of all tokens that are learned; `None` where nobody can tell, or none is."""
        is_known = (self.learned >= 0) & (self.lengths >= 0)
        total = int(self.lengths[is_known].sum())
        return float(self.learned[is_known].sum() / total) if total and self.learns_tokens else None

    @property
    def mean_learned(self) -> float | None:
        """How many tokens or labels of a sample are learned; `None` where nobody can tell."""
        known = self.learned[self.learned >= 0]
        return float(known.mean()) if len(known) else None

    @property
    def num_nothing_learned(self) -> int:
        """How many samples are not empty, and have nothing to learn."""
        return int(((self.learned == 0) & (self.lengths != 0)).sum())

    def num_beyond(self, positions: int | None) -> int:
        """Counts samples that are too long.

        Args:
            positions: The most tokens; `None` for any number.

        Returns:
            How many have more.
        """
        return 0 if positions is None or self.unit != "tokens" else int((self.lengths > positions).sum())
