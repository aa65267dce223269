"""As much replay as keeps old losses within a bound."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from mixer import MixingTrainer, Stream
from mixer.policies import Decision
from mixer.policies.shared.part import part_of_mixture
from replay import ReplayBound, ReplayBuffer, ReplayRatio
from replay.policies.base import Past
from tests.helpers import Tokens
from tests.mixer.trainer.runs import make
from tests.refusals import refused
from tests.replay.policies.updates import MEMORIES, MIXED, OTHERS, shown


def see(policy: ReplayBound, progress: float, early: float, late: float = 1.0) -> Decision:
    evaluated = np.array([early, 5.0, late, 5.0, 5.0])
    return policy.update(shown(5, step=round(100 * progress), progress=progress, evaluation_losses=evaluated))


def odds_of(decision: Decision) -> np.ndarray:
    return decision.weights[MEMORIES] / (1.0 - decision.weights[MEMORIES].sum())


def test_by_hand() -> None:
    policy = ReplayBound(0.05, first_ratio=0.2)
    before = odds_of(policy.start(MIXED))
    np.testing.assert_allclose(before, 0.125)
    np.testing.assert_allclose(odds_of(see(policy, 0.0, 2.0)), before)  # first losses
    now = odds_of(see(policy, 0.1, 2.3))  # 15 % above, while the other is as it was
    np.testing.assert_allclose(now, before * np.exp([0.1 * 75 * 0.10 / 0.9, -0.1 * 75 * 0.05 / 0.9]))
    # It fell by 0.1 in a tenth of the run, from an average pace of +0.05 in two: no fall over the evaluations kept.
    later = odds_of(see(policy, 0.2, 2.1))
    np.testing.assert_allclose(later[0], now[0])
    for progress in (0.3, 0.4, 0.5):
        before = odds_of(see(policy, progress, 2.1))
    fallen = odds_of(see(policy, 0.6, 2.02))  # 1 % above, from 5 % three tenths before: less at the end
    expected = 0.01 + 0.125 * (0.01 - 0.05) / 0.3 * 0.4
    np.testing.assert_allclose(fallen[0], before[0] * math.exp(0.1 * 75 * (expected - 0.05) / 0.4))


def test_a_jump_moves_by_as_much_as_is_allowed_at_once_and_unknown_losses_not_at_all() -> None:
    policy = ReplayBound(0.0)
    before = odds_of(policy.start(MIXED))
    see(policy, 0.0, 1.0)
    now = odds_of(see(policy, 0.02, 1e300))
    np.testing.assert_allclose(now[0], before[0] * math.exp(0.02 * 20))
    for loss in (math.nan, math.inf):
        np.testing.assert_allclose(odds_of(see(policy, 0.03, loss))[0], now[0])


def test_each_old_stream_goes_by_the_largest_rise_of_its_own_and_of_sets_that_are_no_streams() -> None:
    policy = ReplayBound(0.05, first_ratio=0.2, sets=["public", "prose"])
    before = odds_of(policy.start(MIXED))

    def seen(progress: float, early: float, **sets: float) -> np.ndarray:
        evaluated = np.array([early, 5.0, 1.0, 5.0, 5.0])
        known = {"evaluation_losses": evaluated, "evaluation_set_loss": sets or None}
        return odds_of(policy.update(shown(5, step=round(100 * progress), progress=progress, **known)))

    np.testing.assert_allclose(seen(0.0, 2.0, public=4.0, prose=3.0), before)  # first losses
    now = seen(0.1, 2.3, public=4.4, prose=3.0)  # 15 % above its own, 10 % above a set
    np.testing.assert_allclose(now, before * np.exp([0.1 * 75 * 0.10 / 0.9, 0.1 * 75 * 0.05 / 0.9]))
    assert policy.lasting_state()["public"] == {"first": 4.0}
    later = seen(0.2, 2.1)  # an evaluation of streams alone: by their own, 5 % and 0 %
    np.testing.assert_allclose(later, now * np.exp([0.0, -0.1 * 75 * 0.05 / 0.8]))


def test_the_first_of_several_tasks_notes_the_losses_of_sets_though_it_replays_nothing() -> None:
    policy = ReplayBound(sets=["public"])
    policy.past = Past({}, {}, {})
    policy.start(part_of_mixture(MIXED, OTHERS))
    policy.update(shown(3, evaluation_losses=np.full(3, 5.0), evaluation_set_loss={"public": 4.0}))
    assert policy.lasting_state() == {"public": {"first": 4.0}}


@pytest.mark.parametrize("lift", [0.0, 0.06])
@pytest.mark.parametrize("slope", [0.06, 0.08, 0.12])
@pytest.mark.parametrize("level", [-0.05, 0.0, 0.1])
@pytest.mark.parametrize("max_rise", [0.02, 0.05, 0.1])
def test_the_loss_ends_at_the_bound_where_it_follows_the_odds(lift, slope, level, max_rise) -> None:
    policy, names = ReplayBound(max_rise, old=["a"], minimum=1e-3, maximum=0.99), MIXED
    decision, rise = policy.start(names), 0.0
    for number in range(101):
        progress = number / 100
        if number % 5 == 0:
            evaluated = np.array([9.0, 2.0 * (1.0 + rise), 9.0, 9.0, 9.0])
            decision = policy.update(shown(5, number, progress=progress, evaluation_losses=evaluated))
        rate = 1.0 - progress  # the learning rate: it lifts the loss, and is how fast it follows
        goal = level + lift * rate - slope * math.log(decision.weights[1] / (1.0 - decision.weights[1]))
        rise += 0.15 * rate * (goal - rise)
    assert -0.011 < rise - max_rise < 0.005


def test_a_limit_that_stands_in_the_way_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    policy = ReplayBound(0.05, maximum=0.5)
    policy.start(MIXED)
    see(policy, 0.0, 1.0)
    for number in range(1, 12):
        decision = see(policy, number / 20, 2.0, 0.5)
        assert decision.weights[MEMORIES].sum() <= 0.5 + 1e-9
    assert caplog.text.count("ReplayBound replays its maximum, 0.5 of all samples, but the losses of") == 1
    assert "['100.0 %', '-50.0 %'] above the first ones and may rise by 5 %" in caplog.text


def test_a_bound_that_the_end_of_the_run_will_not_keep_is_told(caplog: pytest.LogCaptureFixture) -> None:
    policy = ReplayBound(0.05)
    policy.start(MIXED)
    see(policy, 0.0, 1.0)
    see(policy, 0.85, 1.2, 0.5)
    assert not caplog.text
    see(policy, 0.95, 1.2, 0.5)
    assert "['20.0 %', '-50.0 %'] above the first ones and may rise by 5 %" in caplog.text


def test_old_streams_need_not_be_buffers_and_explain_themselves() -> None:
    policy = ReplayBound(old=["a", "c"], policy={"early": 1, "late": 1, "b": 2})
    decision = policy.start(MIXED)
    np.testing.assert_allclose(decision.weights, [0.225, 0.05, 0.225, 0.45, 0.05])
    terms = policy.explain()
    np.testing.assert_allclose(terms["odds"], [np.nan, 1 / 18, np.nan, np.nan, 1 / 18])


@pytest.mark.parametrize(
    ("options", "option"),
    [
        *(({"old": old}, "old") for old in ("english", [], ["x"])),
        *(({"sets": sets}, "sets") for sets in ("public", ["early"])),
        *((options, "first_ratio") for options in ({"first_ratio": 0.95}, {"minimum": 0.0})),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], option: str) -> None:
    with refused(option):
        ReplayBound(**options).start(MIXED)


def test_without_buffers_old_streams_have_to_be_named() -> None:
    with refused("old"):
        ReplayBound().start(part_of_mixture(MIXED, [1, 3]))


def _trainer(folder: Path, mixing: Any, streams: Any, **args: Any) -> MixingTrainer:
    options = {"max_steps": 12, "eval_strategy": "steps", "eval_steps": 2, "eval_on_start": True, **args}
    options.setdefault("eval_dataset", {name: Tokens(8, 9) for name in ("new", "old")})
    return make(folder, train_dataset=streams, mixing=mixing, **options)


def test_a_run_replays_by_its_evaluations_and_resumes_to_the_bit(tmp_path: Path) -> None:
    def new(folder: str) -> MixingTrainer:
        mixing = ReplayBound(0.0, old=["old"], first_ratio=0.3)
        streams, saves = {"new": Tokens(40, 1), "old": Tokens(40, 2)}, {"save_strategy": "steps", "save_steps": 4}
        return _trainer(tmp_path / folder, mixing, streams, **saves)

    whole, resumed = new("whole"), new("whole")
    whole.train()
    shares = whole.ledger.to_pandas().query("stream == 'old'")["weight"].to_numpy()
    assert shares[0] == pytest.approx(0.3)
    assert len(set(shares.round(6))) > 4
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-8"))
    assert all(torch.equal(x, y) for x, y in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))


def test_a_set_that_is_no_stream_is_bounded_over_a_resume_too(tmp_path: Path) -> None:
    streams, sets = {"new": Tokens(40, 1), "old": Tokens(40, 2)}, {name: Tokens(8, 9) for name in ("new", "old")}

    def new(folder: str, more: dict[str, Any], **options: Any) -> MixingTrainer:
        mixing = ReplayBound(0.05, old=["old"], first_ratio=0.3, sets=["public"])
        return _trainer(tmp_path / folder, mixing, streams, eval_dataset={**sets, **more}, **options)

    with refused("eval_dataset"):
        new("refused", {})
    public, saves = {"public": Tokens(8, 5)}, {"save_strategy": "steps", "save_steps": 5}
    whole, resumed = new("whole", public, **saves), new("whole", public, **saves)
    whole.train()
    evaluations = whole.ledger.evaluations().pivot(index="step", columns="stream", values="loss")
    rises = evaluations[["old", "public"]] / evaluations[["old", "public"]].iloc[0] - 1.0
    assert whole.mixing.policy.lasting_state()["public"]["first"] == evaluations["public"].iloc[0]
    assert (rises["public"] != rises["old"]).any()
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-5"))
    assert all(torch.equal(x, y) for x, y in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))


def test_a_buffer_is_old_and_an_evaluation_before_the_first_step_is_needed(tmp_path: Path) -> None:
    streams = [Stream("new", Tokens(40, 1)), Stream("old", ReplayBuffer(capacity=20, streams=["new"]))]
    trainer = _trainer(tmp_path, ReplayBound(), streams)
    trainer.train()
    assert trainer.mixing.seen[1] > 0
    with refused("eval_on_start"):
        _trainer(tmp_path, ReplayBound(), streams, eval_on_start=False)
    _trainer(tmp_path, ReplayRatio(0.1), streams, eval_on_start=False)
