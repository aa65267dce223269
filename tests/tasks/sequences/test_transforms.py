import cmath
import math
from typing import Any

import pytest
import torch
from hypothesis import given, strategies as st

from mixer.utils.errors import ErrorFacts
from tasks.sequences import Permutation, Rotation
from tests.refusals import refused


@given(st.integers(0, 2**40), st.integers(1, 200))
def test_a_permutation_is_a_bijection(seed: int, num_features: int) -> None:
    row = torch.arange(num_features).reshape(1, -1)
    permuted = Permutation(seed, num_features)(row)
    assert torch.equal(permuted.sort().values, row)
    assert torch.equal(permuted, Permutation(seed, num_features)(row))
    assert torch.equal(permuted, Permutation(seed, num_features)(row.reshape(1, -1, 1)).flatten(1))
    assert num_features < 20 or not torch.equal(permuted, Permutation((seed, 1), num_features)(row))


@pytest.mark.parametrize("size", [7, 8])
@pytest.mark.parametrize("quarters", [1, 2, 3, -1])
def test_quarter_turns_are_those_of_torch(size: int, quarters: int) -> None:
    pixels = torch.rand(3, size, size)
    torch.testing.assert_close(Rotation(90 * quarters, size, size)(pixels), torch.rot90(pixels, quarters, (1, 2)))


@given(st.floats(-400, 400))
def test_a_turn_of_a_smooth_image_is_its_formula(degrees: float) -> None:
    distance, width = torch.arange(15) - 7.0, 3.0
    places = distance[None] - 1j * distance[:, None]  # to the right, and up
    turned_places = places * cmath.exp(-1j * math.radians(degrees))

    def blob(where: torch.Tensor) -> torch.Tensor:
        return torch.exp(-(where - (1 - 2j)).abs().square() / (2 * width**2))

    turned = Rotation(degrees, 15, 15)(blob(places)[None])[0]
    most = 1 / (4 * width**2)  # bilinear interpolation is off by an eighth of the second derivatives at most
    assert (turned - blob(turned_places))[places.abs() < 6].abs().max() < most


def test_rows_images_and_channels_turn_alike() -> None:
    rotation, pixels = Rotation(25, 6, 6), torch.rand(4, 6, 6)
    turned = rotation(pixels)
    assert torch.equal(rotation(pixels.flatten(1)), turned.flatten(1))
    assert torch.equal(rotation(pixels.reshape(2, 2, 6, 6)), turned.reshape(2, 2, 6, 6))
    assert torch.equal(rotation(pixels[1:2]), turned[1:2])


@pytest.mark.parametrize(
    ("make", "inputs", "option"),
    [
        (lambda: Permutation(0, 9), torch.zeros(1, 5, 4), "inputs"),
        (lambda: Permutation(0, 0), None, "Permutation: num_features"),
        (lambda: Rotation(10, 6, 6), torch.zeros(2, 5, 6), "inputs"),
        (lambda: Rotation(10, 6, 6), torch.zeros(1, 36).byte(), "inputs"),
        (lambda: Rotation(float("nan"), 6, 6), None, "Rotation: degrees"),
    ],
)
def test_what_cannot_be_transformed(make: Any, inputs: Any, option: str) -> None:
    with refused(option, ErrorFacts):
        make()(inputs)
