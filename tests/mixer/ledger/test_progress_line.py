"""What streams have covered, on part of a line."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mixer.ledger.progress.line import coverage_text

UNKNOWN = float("nan")


@pytest.mark.parametrize(
    ("coverage", "text"),
    [
        ([0.5, UNKNOWN], "coverage a 50% b 20 rows"),
        ([0.0, 0.25, 0.5, 1.0], "coverage a 0% b 25% c 50% d 100%"),
        ([0.5, 0.25, 1.0, 0.75, 0.5], "coverage b 25% … c 100%"),
        ([0.5, UNKNOWN, 0.75, 0.5, 0.5], "coverage a 50% … c 75%"),
        ([UNKNOWN] * 5, "150 rows"),
    ],
)
def test_few_streams_are_named_and_of_many_the_least_and_the_most(coverage: list[float], text: str) -> None:
    names = "abcde"[: len(coverage)]
    seen = np.array([10, 20, 30, 40, 50])[: len(coverage)]
    mixing: Any = SimpleNamespace(names=names, coverage=dict(zip(names, coverage, strict=True)), seen=seen)
    assert coverage_text(mixing) == text
