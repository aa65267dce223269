"""Images turned by an angle (Lopez-Paz and Ranzato 2017, rotated MNIST)."""

import math

import torch
from torch import Tensor

_ZERO = 1e-9


class Rotation:
    """Turns images counter-clockwise about their middle, by bilinear interpolation; what comes in from outside is 0.

    Args:
        degrees: The angle.
        height: Rows of an image.
        width: Columns of an image.

    Raises:
        ValueError: If an image has no pixels or the angle is not finite.
    """

    def __init__(self, degrees: float, height: int, width: int):
        if height < 1 or width < 1:
            raise ValueError(f"Rotation: height and width must be 1 or more, got {height} and {width}.")
        if not math.isfinite(degrees):
            raise ValueError(f"Rotation: degrees must be a finite number, got {degrees}.")
        self.degrees, self.height, self.width = degrees, height, width
        self.sources, self.shares = _interpolation(math.radians(degrees), height, width)

    def __call__(self, inputs: Tensor) -> Tensor:
        """Turns.

        Args:
            inputs: Floating `[count, ..., height, width]`, or `[count, height * width]`.

        Returns:
            The same shape.

        Raises:
            TypeError: If pixels are whole numbers.
            ValueError: If images have another size.
        """
        num_pixels = self.height * self.width
        if not inputs.is_floating_point():
            raise TypeError(f"Rotation: pixels must be floating, scaled to [0, 1] say, got {inputs.dtype}.")
        is_image = inputs.ndim > 2 and inputs.shape[-2:] == (self.height, self.width)
        if not is_image and inputs.shape[1:] != (num_pixels,):
            size = f"{self.height} by {self.width}"
            raise ValueError(f"Rotation: images must be {size} or {num_pixels} pixels, got {list(inputs.shape[1:])}.")
        pixels, shares = inputs.reshape(-1, num_pixels), self.shares.to(inputs.dtype)
        turned = torch.zeros_like(pixels)
        for corner in range(4):
            turned += pixels.index_select(1, self.sources[corner]) * shares[corner]
        return turned.reshape(inputs.shape)


def _interpolation(angle: float, height: int, width: int) -> tuple[Tensor, Tensor]:
    """Finds which four pixels each pixel is mixed of, int64 `[4, num_pixels]`, and their shares, of the same shape."""
    down, right = torch.meshgrid(
        torch.arange(height, dtype=torch.float64) - (height - 1) / 2,
        torch.arange(width, dtype=torch.float64) - (width - 1) / 2,
        indexing="ij",
    )
    cosine, sine = math.cos(angle), math.sin(angle)
    row = (cosine * down + sine * right + (height - 1) / 2).flatten()
    column = (cosine * right - sine * down + (width - 1) / 2).flatten()
    # Angles of quarter turns are not exact in radians: without this, pixels at the edge would fall outside.
    row, column = (torch.where((x - x.round()).abs() < _ZERO, x.round(), x) for x in (row, column))
    sources, shares = [], []
    for rows, row_share in _neighbours(row):
        for columns, column_share in _neighbours(column):
            is_inside = (rows >= 0) & (rows < height) & (columns >= 0) & (columns < width)
            place = rows.clamp(0, height - 1) * width + columns.clamp(0, width - 1)
            sources.append(place.long())
            shares.append(row_share * column_share * is_inside)
    return torch.stack(sources), torch.stack(shares)


def _neighbours(place: Tensor) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Gives the whole numbers below and above, each with its share."""
    below = place.floor()
    return (below, 1 - (place - below)), (below + 1, place - below)
