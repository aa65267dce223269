"""Every policy's decisions are replayed from the ledger of a run of the trainer, to the last digit."""

from pathlib import Path

import numpy as np
import pytest

import mixer
from mixer.analysis.explain.explanation import explain
from mixer.policies.registry import built_in_policies
from tests.mixer.test_every_policy_trains import MAKERS, train


@pytest.fixture(autouse=True)
def _fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gc.collect", lambda *_: 0)


@pytest.mark.parametrize("name", sorted(built_in_policies()))
def test_its_decisions_are_replayed_exactly(tmp_path: Path, name: str) -> None:
    trainer, _, decisions = train(tmp_path, name)
    policy = MAKERS["Function"]() if name == "Function" else None  # a function is no plain data
    found = explain(tmp_path, 6, policy)
    assert found.is_replayed, found.notes
    outer = found.levels[-1]
    np.testing.assert_allclose(outer.decision.weights / np.sum(outer.decision.weights), found.weights["policy_weight"])
    if decisions:
        np.testing.assert_array_equal(outer.decision.weights, decisions[4].weights)
        if decisions[4].loss_weights is not None:
            np.testing.assert_array_equal(outer.decision.loss_weights, decisions[4].loss_weights)
    assert [level.name for level in found.levels][::-1] == _names(trainer.mixing.policy)
    counts = found.counts
    np.testing.assert_allclose(counts["owed"] - counts["count"], counts["left"], atol=1e-12)


def _names(policy: mixer.Policy) -> list[str]:
    inner = getattr(policy, "policy", None)
    return [type(policy).__name__] + ([] if inner is None else _names(inner))
