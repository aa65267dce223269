"""The sentence on a decision names a cause that fits the direction of the change."""

import math
from typing import Any

import numpy as np
import pandas as pd
import pytest

from mixer import Decision
from mixer.ledger.decisions import Level
from mixer.tools.report.last_change import last_change

NAMES = ("mr", "cr", "mpqa")
THIRD = [1 / 3] * 3


def said(before: list[float], after: list[float], **terms: Any) -> str:
    weights = pd.DataFrame({"before": before, "policy_weight": after}, index=list(NAMES))
    level = Level("Inner", NAMES, Decision(np.array(after)), {key: np.array(term) for key, term in terms.items()})
    return last_change(weights, [level], "samples", "loss of mr")


def test_a_tie_is_no_cause_and_nothing_measured_is_said() -> None:
    found = said([math.nan] * 3, THIRD, scores=[math.nan] * 3, memory=THIRD, trust=0.0)
    assert found.startswith("All 3 streams have the same share, 33.3%")
    assert "nothing is measured yet" in found
    assert "memory" not in found
    assert "largest" not in said(THIRD, [0.4, 0.3, 0.3], worth=[1.0, 1.0, 1.0])


@pytest.mark.parametrize(
    ("share", "trust", "begins"),
    [(0.078, 0.0, "the evidence is thin"), (0.078, 0.9, "although the estimated"), (0.068, 0.0, "the estimated gain")],
)
def test_the_cause_fits_the_direction(share: float, trust: float, begins: str) -> None:
    rest = (1.0 - share) / 2.0
    found = said([0.4635, 0.4635, 0.073], [rest, rest, share], scores=[1.0, 0.4, -0.257], trust=trust)
    assert found.partition(": ")[2].startswith(begins)


def test_the_part_that_is_drawn_from_targets_is_said() -> None:
    weights = pd.DataFrame({"before": THIRD, "policy_weight": [0.83, 0.085, 0.085]}, index=list(NAMES))
    inner = Level("Inner", NAMES, Decision(np.array(THIRD)), {})
    terms = {"drawn as targets": np.array([0.75, 0.0, 0.0])}
    levels = [inner, Level("Safeguard", NAMES, Decision(np.array([0.83, 0.085, 0.085])), terms)]
    assert "as 75% of each batch is drawn from the targets (mr)" in last_change(weights, levels, "samples", "")
