"""Runs of one mixture with other seeds: what they train on differs, and by that they are not to be told apart."""

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch

from mixer.ledger.ledger import Ledger
from mixer.ledger.recorder import Recorder
from mixer.loading.loaded_step import StepCounts, StepResult
from mixer.measurements import Loss
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Drawing, Planner
from mixer.mixture.stream import Stream
from mixer.policies import Fixed, Policy
from mixer.policies.contract import Unit
from mixer.tools.analysis.fit import fit_mixture
from mixer.tools.analysis.fit.runs import RecordedRuns
from mixer.utils.recorded_arguments import as_data

SHARES = (0.3, 0.5, 0.7)
OF_THREE_SEEDS = [0, 0, 0, 1, 1, 1, 2, 2, 2]


def run(folder: Path, policy: Policy, seed: int, drawing: Drawing) -> Path:
    """Writes the ledger of a run on samples of 256 ± 128 and of 48 ± 16 tokens, and on one that enters late."""
    streams = [Stream("a", range(4000)), Stream("b", range(4000)), Stream("c", range(4000), enters_at=0.3)]
    mixing = Mixing(Planner(streams, seed, drawing=drawing), policy, Clock(20, 12_000, Budget(steps=30)))
    ledger, generator = Ledger(folder / "ledger", is_writer=True), np.random.default_rng(seed)
    ledger.begin(None, {"run": {"mixing": as_data(policy)}})
    recorder = Recorder(mixing, ledger, reads_at_once=True)
    while mixing.clock.progress < 1.0 and (plan := mixing.next_plan()) is not None:
        lengths = zip((128, 32, 10), (385, 65, 11), plan.counts, strict=True)
        tokens = np.array([generator.integers(least, most, count).sum() for least, most, count in lengths])
        mixing.observe(plan, tokens, {Loss: np.where(plan.counts > 0, 1.0, np.nan)})
        sums = torch.tensor([*plan.counts.tolist(), 1.0])
        recorder.record(StepResult(plan, StepCounts(plan.counts, tokens), sums, 0.1, 1.0))
    recorder.flush()
    ledger.record_evaluation(mixing.clock.step, {"a": 1.0 + generator.random(), "b": 1.0, "c": 1.0})
    ledger.finish()
    return folder


@pytest.mark.parametrize(
    ("unit", "drawing", "asked_in"),
    [
        ("samples", "multinomial", "samples"),
        pytest.param("tokens", "exact", "samples", marks=pytest.mark.full),
        pytest.param("samples", "exact", "tokens", marks=pytest.mark.full),
        ("tokens", "multinomial", "tokens"),
    ],
)
def test_seeds_of_a_mixture_are_one_group(tmp_path: Path, unit: Unit, drawing: Drawing, asked_in: Unit) -> None:
    runs = [
        run(tmp_path / f"{share}-{seed}", Fixed([share, 0.9 - share, 0.1], unit=asked_in), seed, drawing)
        for share, seed in itertools.product(SHARES, range(3))
    ]
    recorded = RecordedRuns(runs, unit, allow_different_budgets=True)
    assert recorded.groups.tolist() == OF_THREE_SEEDS
    assert RecordedRuns(runs[::-1], unit, allow_different_budgets=True).groups.tolist() == OF_THREE_SEEDS
    trained = recorded.mixtures / recorded.mixtures.sum(axis=1, keepdims=True)
    if unit == "tokens" or drawing == "multinomial":
        assert np.ptp(trained[:3, 0]) > 1e-3  # what they trained on is another for each seed


def test_seeds_are_left_out_together_and_the_error_is_no_smaller_for_them() -> None:
    mixtures = np.repeat([[share, 0.9 - share, 0.1] for share in SHARES], 3, axis=0)
    mixtures += 0.01 * np.random.default_rng(0).random(mixtures.shape)
    # Each mixture has a loss that the others do not tell, but its other seeds do: 0.1 is the spread over those.
    losses = np.repeat([[1.0], [3.0], [1.0]], 3, axis=0) + 0.1 * np.array([[-1.0], [0.0], [1.0]] * 3)
    fitted, alone = (
        fit_mixture(mixtures, losses, loss_names=["target"], groups=groups) for groups in (OF_THREE_SEEDS, None)
    )
    assert fitted.error > 1.0
    assert alone.error < 0.7 * fitted.error
