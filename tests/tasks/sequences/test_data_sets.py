import cmath
import math
import pickle
from typing import Any

import datasets
import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils.data import Subset

from mixer.loading.reader import ColumnReader
from mixer.utils.errors import ErrorFacts
from replay import ReplayBuffer
from replay.storage.labels import read_labels
from tasks.sequences import Permutation, Picked, Rotation, Transformed, pick, relabel
from tasks.sources import Arrays, labels_of
from tasks.text_domains import ByteBlocks
from tests.refusals import refused
from tests.tasks.data import Images, assert_columns_are_samples, data_of, numbered_arrays, numbered_table, numbers_in

LABELS = [0, 2, 1, 1, 0, 2, 2, 0, 1]
DATA_SETS = {
    "arrays": numbered_arrays(LABELS),
    "picked": Picked(numbered_arrays(LABELS), [5, 0, 3, 3]),
    "permuted": Transformed(numbered_arrays(LABELS), Permutation(3, 4)),
    "rotated": Transformed(Picked(numbered_arrays(LABELS), [8, 1, 2]), Rotation(33.0, 2, 2)),
    "relabelled": relabel(Picked(numbered_arrays(LABELS), [1, 5, 2]), {1: 0, 2: 1}),
}
TEXT = ByteBlocks(np.arange(80, dtype=np.uint8).reshape(10, 8))


@pytest.mark.parametrize("name", DATA_SETS)
def test_columns_are_stacked_samples_in_a_worker_too_and_a_buffer_knows_them(name: str) -> None:
    data = DATA_SETS[name]
    assert_columns_are_samples(data)
    data.read_columns(np.zeros(1, np.int64))["pixel_values"].fill_(-1)
    assert (data[0]["pixel_values"] >= 0).all()  # what is read has memory of its own
    assert len(list(data)) == len(data)  # a loop ends by IndexError
    assert data[-1]["labels"] == data[len(data) - 1]["labels"]
    everything = np.arange(len(data))
    sent = pickle.loads(pickle.dumps(data)).read_columns(everything)  # noqa: S301
    assert all(torch.equal(sent[column], values) for column, values in data.read_columns(everything).items())
    assert isinstance(data, ColumnReader)
    assert read_labels(data, everything).tolist() == data.labels.tolist()
    buffer = ReplayBuffer(3, "ClassBalanced", seed=0)
    buffer.remember("old", data)
    assert set(buffer.entries["label"].tolist()) <= set(data.labels.tolist())


@given(st.lists(st.lists(st.integers(0, 10**6), min_size=1, max_size=20), min_size=1, max_size=5))
def test_picking_again_and_again_stays_flat(rounds: list[list[int]]) -> None:
    base = numbered_arrays(np.arange(30))
    expected, data = np.arange(30), base
    for wanted in rounds:
        indices = np.array(wanted) % len(data)
        expected, data = expected[indices], pick(data, indices)
    assert data.base is base
    assert data.indices.tolist() == data.labels.tolist() == numbers_in(data) == expected.tolist()
    assert Picked(data, [0]).base is base


def test_picking_goes_below_transforms_and_new_labels() -> None:
    transformed = Transformed(pick(numbered_arrays(LABELS), [1, 3, 5, 7]), Permutation(0, 4))
    picked = pick(pick(transformed, [3, 2, 1]), [2, 0])
    assert (type(picked.base), type(picked.base.base)) == (Picked, Arrays)
    assert torch.equal(picked[1]["pixel_values"], transformed[3]["pixel_values"])
    relabelled = pick(relabel(transformed, {0: 5, 1: 6, 2: 7}), [0, 3])
    assert relabelled.labels.tolist() == [7, 5]


def test_other_data_sets_are_picked_flat_too() -> None:
    for kind in ("table", "images"):
        picked = pick(pick(data_of(kind, list(range(10))), [8, 6, 4, 2]), [3, 1])
        assert numbers_in(picked) == labels_of(picked).tolist() == [2, 6]
    assert isinstance(picked, Subset)
    assert type(picked.dataset) is Images
    assert pick(TEXT, [3, 1]).labels is None


def test_a_table_is_numbered_anew_and_stays_a_table() -> None:
    table = relabel(pick(numbered_table([3, 9, 3, 5]), [1, 0, 2]), {3: 1, 9: 0})
    assert isinstance(table, datasets.Dataset)
    assert (list(table["label"]), list(table["number"])) == ([0, 1, 1], [1, 0, 2])
    scored = datasets.Dataset.from_dict({"label": [0.5, 0.1], "labels": [4, 2]})
    assert relabel(scored, {4: 0, 2: 1})[:] == {"label": [0.5, 0.1], "labels": [0, 1]}


@pytest.mark.parametrize(
    ("make", "option"),
    [
        (lambda: pick(numbered_arrays([0, 1, 2]), [True, False]), "indices"),
        (lambda: Arrays(np.zeros((3, 2)), [0, 1]), "inputs"),
        (lambda: Arrays(np.zeros((2, 2)), [0.0, 1.5]), "labels"),
        (lambda: Arrays(np.zeros((2, 2)), [0, 1], "labels"), "input_name"),
        (lambda: relabel(numbered_arrays(LABELS), {0: 0, 1: 1}), "relabel: numbers"),
        (lambda: relabel(Images([0, 1]), {0: 0, 1: 1}), "dataset"),
        (lambda: relabel(TEXT, {}), "relabel"),
        (lambda: Transformed(numbered_table([0, 1]), Permutation(0, 4)), "A data set to transform"),
        (lambda: Transformed(numbered_arrays([0]), Permutation(0, 4), "x"), "input_name"),
    ],
)
def test_what_cannot_be_picked_read_numbered_or_transformed(make: Any, option: str) -> None:
    with refused(option, ErrorFacts):
        make()


@pytest.mark.parametrize("index", [3, -1])
def test_samples_that_are_not_there(index: int) -> None:
    with pytest.raises(IndexError):
        pick(numbered_arrays([0, 1, 2]), [index])
    with pytest.raises(IndexError):
        numbered_arrays([0, 1, 2])[3]


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
