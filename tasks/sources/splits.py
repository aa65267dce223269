"""A source's data, in two parts."""

from typing import Any, NamedTuple

from mixer.recipe.data.validation import hold_out as draw_held_out
from mixer.utils.arrays import Int64Array


class Splits(NamedTuple):
    """What is trained on and what is evaluated on: `by_class(*digits(), classes_per_task=2)`.

    Attributes:
        train: A map-style data set.
        evaluation: Another.
    """

    train: Any
    evaluation: Any


def hold_out(num_samples: int, share: float, seed: int) -> tuple[Int64Array, Int64Array]:
    """Draws which samples are held out for evaluation.

    Args:
        num_samples: How many there are.
        share: Which share of them is held out.
        seed: Seed of the draw.

    Returns:
        Indices for training and for evaluation, int64, ascending; none in both.

    Raises:
        ValueError: If one of them would be empty.
    """
    num_held = round(num_samples * share) if 0.0 < share < 1.0 else 0
    if not 0 < num_held < num_samples:
        raise ValueError(
            f"evaluation_share must leave a sample of {num_samples} for training and one for evaluation, got {share}."
        )
    return draw_held_out(num_samples, num_held, seed)
