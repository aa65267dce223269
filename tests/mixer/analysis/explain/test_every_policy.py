"""The ledger holds every policy's decisions as the policy made them, to the last digit."""

from pathlib import Path

import numpy as np
import pytest

import mixer
from mixer.analysis.explain.explanation import explain
from mixer.policies.registry import built_in_policies
from tests.mixer.trainer.test_every_policy_trains import train

pytestmark = pytest.mark.full


@pytest.mark.parametrize("name", sorted(built_in_policies()))
def test_its_decisions_are_recorded_exactly(tmp_path: Path, name: str) -> None:
    trainer, _, decisions = train(tmp_path, name)
    found = explain(tmp_path, 6)
    counts = found.counts
    np.testing.assert_allclose(counts["owed"] - counts["count"], counts["left"], atol=1e-12)
    if trainer.mixing.policy.is_static:
        assert found.levels == []
        assert not (tmp_path / "ledger" / "decisions").exists()
        return
    assert found.is_decided, found.notes
    outer = found.levels[-1].decision
    np.testing.assert_array_equal(outer.weights / np.sum(outer.weights), found.weights["policy_weight"])
    np.testing.assert_array_equal(outer.weights, decisions[4].weights)
    if decisions[4].loss_weights is not None:
        np.testing.assert_array_equal(outer.loss_weights, decisions[4].loss_weights)
    assert [level.name for level in found.levels][::-1] == _names(trainer.mixing.policy)


def _names(policy: mixer.Policy) -> list[str]:
    inner = getattr(policy, "policy", None)
    return [type(policy).__name__] + ([] if inner is None else _names(inner))
