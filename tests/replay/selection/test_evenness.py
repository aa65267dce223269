import numpy as np

from replay.shared.random_numbers import RandomNumbers, scaled
from tests.replay.selection.offering import chi_square_is_fine


def test_whole_numbers_are_exact_upper_halves() -> None:
    numbers, counters = RandomNumbers(11), np.arange(1_000)
    for bound in (1, 2, 3, 1_000, 2**31 - 1, 2**32 + 1, 2**62, 2**63 - 1):
        drawn = numbers.integers(counters, np.full(1_000, bound)).tolist()
        assert drawn == [scaled(word, bound) for word in numbers.words(counters).tolist()]
    assert RandomNumbers(7).integers(np.arange(5), np.full(5, 10)).tolist() == [0, 9, 8, 9, 0]


def test_numbers_are_even_and_others_for_other_keys_and_purposes() -> None:
    tables = [RandomNumbers(key, purpose) for key in (0, 1, -(2**63), 2**63 - 1) for purpose in (0, 1, 2)]
    first = np.stack([table.uniforms(np.arange(50_000)) for table in tables])
    assert all(chi_square_is_fine(np.bincount((row * 100).astype(int), minlength=100), 500) for row in first)
    assert np.abs(np.corrcoef(first) - np.eye(len(tables))).max() < 0.03
