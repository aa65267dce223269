from typing import Any

import datasets
import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.tools.recipe.data import Validation
from mixer.utils.held_out import hold_out
from tests.refusals import refused


@given(st.lists(st.integers(0, 4), min_size=2, max_size=200), st.data(), st.integers(0, 9))
def test_every_part_has_its_share(parts: list[int], data: st.DataObject, seed: int) -> None:
    strata = np.unique(parts, return_inverse=True)[1]
    sizes = np.bincount(strata)
    num_held = data.draw(st.integers(1, max(1, len(parts) - len(sizes))))
    if num_held > len(parts) - len(sizes):
        with pytest.raises(ValueError, match="since one of each must stay for training"):
            hold_out(len(parts), num_held, seed, strata)
        return
    kept, held = hold_out(len(parts), num_held, seed, strata)
    assert sorted([*kept, *held]) == list(range(len(parts)))
    assert len(held) == num_held
    assert np.all(np.diff(kept) > 0)
    assert np.all(np.diff(held) > 0)
    assert set(strata[kept]) == set(strata)
    shares, counts = sizes * num_held / len(parts), np.bincount(strata[held], minlength=len(sizes))
    if np.all(np.floor(shares) + 1 < sizes):  # else some cannot give theirs
        assert np.all(np.abs(counts - shares) < 1)
    assert np.all(counts >= np.floor(shares))
    again = hold_out(len(parts), num_held, seed, strata)
    assert np.array_equal(held, again[1])


def rows(num: int) -> datasets.Dataset:
    return datasets.Dataset.from_dict({"n": list(range(num)), "kind": ["ab"[number % 4 == 0] for number in range(num)]})


def test_a_share_or_a_number_of_rows_is_carved_off() -> None:
    train, held = Validation(0.25).carve(rows(40))
    assert (len(train), len(held)) == (30, 10)
    train, held = Validation(8, stratify_by="kind").carve(rows(40))
    assert sorted(held["kind"]) == ["a"] * 6 + ["b"] * 2
    assert not set(train["n"]) & set(held["n"])
    assert Validation(8, "kind", seed=1).carve(rows(40))[1]["n"][:] != held["n"][:]
    # Which rows they are stays the same in later versions.
    assert Validation(3).carve(rows(12))[1]["n"][:] == [2, 7, 9]
    assert Validation(4, "kind").carve(rows(12))[1]["n"][:] == [2, 4, 7, 9]


@pytest.mark.parametrize("size", [0, 0.0, 1.0, -3, 1.5, True])
def test_a_size_that_is_neither_is_refused(size: float) -> None:
    with refused("validation", found=size):
        Validation(size)


@pytest.mark.parametrize(
    ("validation", "data", "option", "found"),
    [
        (Validation(40), rows(40), "validation", 40),
        (Validation(4, "label"), rows(40), "validation.stratify_by", "label"),
        (Validation(4), rows(40).to_iterable_dataset(), "validation", "a stream"),
    ],
)
def test_what_cannot_be_divided_is_refused(validation: Validation, data: Any, option: str, found: Any) -> None:
    with refused(option, found=found):
        validation.carve(data)
