"""Forks of a run within it: what they measure, and that the run goes on as if there were none."""

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from datasets import IterableDataset
from transformers import default_data_collator

from mixer import Fixed, ForkTest, Function, MixingTrainer, Objective, Scheduled
from mixer.loading.loaded_step import StepResult
from mixer.measurements import ForkGain, Forks, Results
from mixer.measurements.hooks.forks import ForkProbe, paired
from tests.helpers import Tokens, weights_of
from tests.mixer.comparing import KIND, Tagger, build, streams
from tests.refusals import refused

OUTSIDE = {**streams(), "outside": Tokens(40, 9, KIND)}
MIXTURE = {"a": 6.0, "b": 1.0, "c": 1.0}
STEPS, PLACE, SHARE = 24, 12, 0.4


def make(folder: Path, policy: Any, **changes: Any) -> MixingTrainer:
    args = {"max_steps": STEPS, "optim": "adamw_torch", "learning_rate": 0.05, **changes.pop("args", {})}
    options = {"eval_dataset": OUTSIDE, "objective": {"outside": 3, "a": 1}, "model": Tagger(dropout=0.3), **changes}
    return build(folder, policy, args=args, **options)


def train(folder: Path, policy: Any, resumes: Any = None, **changes: Any) -> MixingTrainer:
    trainer = make(folder, policy, **changes)
    trainer.train(resume_from_checkpoint=resumes)
    return trainer


def forked(threshold: float = -100.0, at: Any = (0.5,), share: float = SHARE) -> ForkTest:
    return ForkTest(Fixed(MIXTURE), threshold, at, share)


def losses_by_hand(probe: ForkProbe, trainer: MixingTrainer, plans: Any, num_steps: int) -> list[Any]:
    """Trains a copy of the model and of its optimizer; each target's rows with their mean losses and labels."""
    model, optimizer = copy.deepcopy((trainer.model, probe._passes.optimizer))
    rate = optimizer.param_groups[0]["lr"]
    for number, plan in zip(range(num_steps), plans, strict=False):
        rows = []
        for k, cursor in enumerate(trainer.mixing.planner.cursors):
            places = plan.starts[k] + np.arange(plan.counts[k])
            rows += [trainer.streams[k].dataset[index] for index in cursor.references(places).tolist()]
        optimizer.zero_grad()
        model(**default_data_collator(rows))["loss"].backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for group in optimizer.param_groups:
            group["lr"] = rate * (1 - number / num_steps)
        optimizer.step()
    model.eval()
    rows_of = [[target._rows[i] for i in range(target.num_rows)] for target in probe._targets]
    return [
        np.array(
            [[model(**default_data_collator([row]))["loss"].item(), int((row["labels"] >= 0).sum())] for row in own]
        )
        for own in rows_of
    ]


def mean_and_error(present: Any, own: Any) -> tuple[float, float]:
    d, n = own[:, 0] - present[:, 0], own[:, 1]
    mean = np.average(d, weights=n)
    return mean, (len(n) * np.var(n * (d - mean), ddof=1)) ** 0.5 / n.sum()  # the residuals have a mean of 0


def test_a_gain_is_that_of_two_trainings_by_hand(tmp_path, monkeypatch) -> None:
    expected, observe = [], ForkProbe.observe

    def both(probe: ForkProbe, result: StepResult) -> Results:
        if result.plan.step == PLACE:
            ahead = probe._passes.run.mixing.after(result.plan, result.contents.tokens)
            num_steps = probe._num_steps(ahead.clock.num_samples / 0.5, 9)
            assert num_steps == 3  # of 36.8 samples a fork, 5 for its 15 rows that go forward alone
            mixtures = np.array([6.0, 1.0, 1.0]) / 8, np.ones(3) / 3
            present, own = (losses_by_hand(probe, trainer, ahead.branch(own), num_steps) for own in mixtures)
            (first, one), (second, other) = map(mean_and_error, present, own)
            expected.append(ForkGain(0.75 * first + 0.25 * second, np.hypot(0.75 * one, 0.25 * other)))
        return observe(probe, result)

    monkeypatch.setattr(ForkProbe, "observe", both)
    trainer = make(tmp_path, policy := forked(), model=Tagger())
    trainer.train()
    found = policy.explain()
    np.testing.assert_allclose([found["gain of its fork"], found["standard error"]], expected[0], rtol=1e-9)
    assert trainer.ledger.timings().query("probe_seconds > 0")["step"].tolist() == [PLACE]


def test_forks_are_made_again_where_memory_runs_out_in_one(tmp_path: Path, monkeypatch) -> None:
    """Their losses are compared by row, or by micro-batch: both need the same micro-batches."""
    sizes, fork = [], ForkProbe._fork

    def short_of_memory(probe: ForkProbe, *args: Any) -> Any:
        sizes.append(probe._passes.cap.max_samples)
        if len(sizes) == 2:
            cap = probe._passes.run.splitting.cap
            probe._passes._halved[cap] = replace(cap, max_samples=2)
        return fork(probe, *args)

    monkeypatch.setattr(ForkProbe, "_fork", short_of_memory)
    train(tmp_path, forked())
    assert sizes == [3, 3, 2, 2]


@pytest.mark.parametrize("optim", ["adamw_torch", "sgd"])
def test_a_run_goes_on_as_if_it_had_no_forks(tmp_path: Path, optim: str) -> None:
    args, ends = {"optim": optim, "max_grad_norm": 0.1, "lr_scheduler_type": "cosine"}, []
    for name, policy in (("plain", Fixed(MIXTURE)), ("forked", forked())):
        objective = Objective(["outside"], development_share=0.25)
        model = Tagger(dropout=0.3, has_norm=True)
        trainer = train(tmp_path / name, policy, args=args, model=model, objective=objective)
        ends.append(([weights_of(model), *model.buffers()], trainer.ledger.to_pandas()))
    assert all(torch.equal(one, other) for one, other in zip(ends[0][0], ends[1][0], strict=True))
    columns = [name for name in ends[0][1] if name != "staleness"]
    assert ends[0][1][columns].equals(ends[1][1][columns])


def test_a_policy_without_gain_is_left_for_good_and_a_resumed_run_knows_it(tmp_path: Path) -> None:
    args = {"save_strategy": "steps", "save_steps": 15}
    left = train(tmp_path / "left", forked(threshold=100.0), args=args)
    switched = Scheduled([(0.0, MIXTURE), (0.49, MIXTURE), (0.491, dict.fromkeys(MIXTURE, 1.0))])
    by_hand = train(tmp_path / "by_hand", switched, objective=Objective(["outside"], development_share=0.25))
    weights = by_hand.ledger.to_pandas().pivot_table(index="step", columns="stream", values="weight")
    assert weights["a"].round(6).unique().tolist() == [0.75, round(1 / 3, 6)]
    counts = [own.ledger.to_pandas()[["step", "stream", "count"]] for own in (left, by_hand)]
    assert counts[0].equals(counts[1])
    assert left.mixing.policy.explain()["followed"] == 0.0
    resumed = train(tmp_path / "left", forked(threshold=100.0), args=args, resumes=True)
    assert torch.equal(weights_of(left.model), weights_of(resumed.model))


def test_a_run_resumed_before_its_forks_has_the_same(tmp_path: Path) -> None:
    args, found = {"save_strategy": "steps", "save_steps": 5, "save_total_limit": None}, []
    for checkpoint in (None, str(tmp_path / "checkpoint-10")):
        trainer = train(tmp_path, policy := forked(at=(0.5, 0.75)), checkpoint, args=args)
        found.append((policy.state_dict(), weights_of(trainer.model)))
    assert found[0][0] == found[1][0]
    assert torch.equal(found[0][1], found[1][1])


def test_the_same_mixture_is_not_compared(tmp_path: Path) -> None:
    policy = ForkTest(Function(lambda step, weights: [1.0, 1.0, 1.0]), share=SHARE)
    trainer = train(tmp_path, policy)
    assert policy.explain() == {"followed": 1.0, "gain of its fork": 0.0, "standard error": 0.0}
    assert not trainer.ledger.timings()["probe_seconds"].any()


def test_forks_take_no_more_than_their_share(tmp_path: Path, monkeypatch) -> None:
    work, load = {"rows": 0.0}, ForkProbe._backward

    def counted(probe: ForkProbe, micros: Any, parameters: Any) -> bool:
        work["rows"] += sum(len(micro.stream_ids) for micro in micros)
        return load(probe, micros, parameters)

    monkeypatch.setattr(ForkProbe, "_backward", counted)
    train(tmp_path, policy := forked(at=(0.25, 0.5, 0.75), share=0.5))
    evaluated = 3 * 2 * (10 + 5) / 3  # forwards alone, of all development rows
    assert 0.6 * 0.5 * 184 < work["rows"] + evaluated <= 0.5 * 184
    assert "3 places" in policy.needs[-1].cost()


def test_the_error_of_a_gain_is_that_of_a_ratio() -> None:
    random = np.random.default_rng(0)
    n = random.integers(1, 9, 4000).astype(float)
    loss, d = n * 2.0, n * 0.1 + random.normal(0.0, 0.5, 4000)
    sums = np.array([loss.sum(), n.sum(), d.sum(), d @ d, d @ n, n @ n, 4000.0])
    losses, gains, variances = paired(sums[None])
    again = [random.integers(0, 4000, 4000) for _ in range(500)]
    assert (losses[0], gains[0]) == pytest.approx((2.0, d.sum() / n.sum()))
    assert variances[0] ** 0.5 == pytest.approx(np.std([d[own].sum() / n[own].sum() for own in again]), rel=0.1)
    assert np.isnan(paired(np.array([[1.0, 1.0, 0.5, 0.25, 0.5, 1.0, 1.0]]))[2]).all()


@pytest.mark.parametrize(
    "changes",
    [
        {"args": {"max_steps": 8}},
        {"objective": Objective(["outside"], bounds={"a": 1.05})},
        {"one_stream_per": "step"},
        {"train_dataset": {**streams(), "c": IterableDataset.from_generator(lambda: iter([]))}},
        {"conflict": "pcgrad"},
    ],
)
def test_what_cannot_be_forked_is_refused(tmp_path: Path, changes: Any) -> None:
    with refused("mixing"):
        train(tmp_path, forked(share=0.1), **changes)


def test_forks_need_an_objective_and_one_request() -> None:
    assert "objective" in Forks().requirements()
    assert Forks.merged([Forks(), Forks()]) == Forks()
    with refused("needs"):
        Forks.merged([Forks(), Forks(share=0.2)])
