"""GRPO on prompts of several streams: as TRL on one, exact counts, rewards by stream, resume."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM
from trl import GRPOConfig, GRPOTrainer

from mixer import Stream
from mixer.measurements import Rewards
from mixer.policies import MTGRPO, Decision, Learnability, Mixture, Observation, Policy, Uniform
from mixer.tools.records.comparison import comparison
from mixer.tools.records.run import Run
from mixer.tools.report.plots.rewards import rewards as rewards_of
from mixer.tools.report.tables import stream_figures
from mixer.trainer.grpo.trainers import MixingGRPOTrainer
from mixer.utils.errors import InvalidTypeError
from replay import ReplayBuffer, ReplayRatio
from replay.selection import Learnable
from tests.mixer.comparing import build
from tests.mixer.trainer.grpo.cases import REWARDS, Seeded, any_half, arguments, mixing_grpo, prompts, sets, weights_of
from tests.mixer.trainer.trl.cases import model_of, tokenizer
from tests.refusals import refused

REUSED: dict[str, Any] = {"num_iterations": 2, "steps_per_generation": 4, "loss_type": "dapo", "max_steps": 2}


@pytest.mark.parametrize(("options", "updates"), [({}, 1), (REUSED, 4), ({"loss_type": "grpo"}, 1)])
def test_one_stream_trains_as_by_trl_to_the_bit(tmp_path: Path, options: dict[str, Any], updates: int) -> None:
    """In the same order, with the same random numbers: also of rounds that several updates use."""
    data, num_rounds = prompts(0, 24), options.get("max_steps", 4)
    own_steps = {**options, "max_steps": num_rounds * updates}
    args = arguments(tmp_path / "trl", GRPOConfig, shuffle_dataset=False, **own_steps)
    stock = GRPOTrainer(model_of(), any_half, args, data, processing_class=tokenizer(), callbacks=[Seeded(updates)])
    stock.train()
    options = {**options, "train_sampling_strategy": "sequential"}
    mixed = mixing_grpo(tmp_path / "mixed", any_half, data, callbacks=[Seeded()], **options)
    mixed.train()
    assert torch.equal(weights_of(mixed), weights_of(stock))
    assert not torch.equal(weights_of(mixed), torch.cat([p.detach().flatten() for p in model_of().parameters()]))
    by_round, by_update = ([entry for entry in t.state.log_history if "loss" in entry] for t in (mixed, stock))
    for own, theirs in zip(by_round, by_update[::updates], strict=True):
        assert (own["reward"], own["num_tokens"]) == (theirs["reward"], theirs["num_tokens"])
    losses = np.array([entry["loss"] for entry in by_update]).reshape(-1, updates).mean(axis=1)
    np.testing.assert_allclose([entry["loss"] for entry in by_round], losses, atol=1e-7)


def test_counts_are_exact_and_rewards_are_told_by_stream(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """4 prompts a round, by 3 : 1; the ledger's figures are those of TRL's own, which knows functions only."""
    options = {"eval_strategy": "steps", "eval_steps": 2, "metric_for_best_model": "a_reward"}
    held_out = {name: rows.select(range(2)) for name, rows in sets().items()}
    trainer = mixing_grpo(tmp_path, mixing={"a": 3, "b": 1}, eval_dataset=held_out, **options)
    trainer.train()
    assert "  share  reward  silent  samples" in capsys.readouterr().out  # of the table by stream
    seen = trainer.ledger.to_pandas().pivot(index="step", columns="stream", values="count")
    assert seen.to_numpy().tolist() == [[3, 1]] * 4
    rewards = trainer.ledger.rewards()
    assert rewards["groups"].tolist() == [3, 1] * 4
    logs = [entry for entry in trainer.state.log_history if "loss" in entry]
    for step, entry in enumerate(logs, 1):
        own = rewards[rewards["step"] == step]
        assert [entry[f"reward/{name}"] for name in "ab"] == own["reward"].tolist()
        assert float(own["reward"] @ own["groups"] / 4) == pytest.approx(entry["reward"], abs=1e-6)
        assert float(own["silent"] @ own["groups"] / 4) == pytest.approx(entry["frac_reward_zero_std"])
        assert float(own["mean_length"] @ own["groups"] / 4) == pytest.approx(entry["completions/mean_length"])
        assert entry["reward_std/a"] > 0
        assert "loss/a" not in entry
    evaluated = [entry for entry in trainer.state.log_history if "eval_a_reward" in entry]
    assert len(evaluated) == 2
    run = Run(tmp_path)
    assert rewards_of([run], 100).panels[0].figure.data
    table = comparison([run])
    ends = [f"{own[0]:,.3f} → {own[-1]:,.3f}" for own in (run.rewards[name]["reward"].to_numpy() for name in "ab")]
    assert [*table.columns[1].cells][:2] == ends
    assert "Reward" in str(table.title)
    figures = stream_figures(run).set_index("stream")
    assert figures["last_reward"].tolist() == rewards["reward"].tolist()[-2:]
    assert figures["training_not_finite_since"].isna().all()
    assert trainer.state.best_metric == max(entry["eval_a_reward"] for entry in evaluated)
    assert all(entry["eval_a_rewards/second_half/mean"] is None for entry in evaluated)


class Watching(Policy):
    """Notes what it is shown, and gives all prompts to one stream in turn."""

    needs = (Rewards(),)

    def start(self, mixture: Mixture) -> Decision:
        self.seen: list[Any] = []
        return Decision(np.array([1.0, 0.0]))

    def update(self, observation: Observation) -> Decision:
        self.seen.append(observation[Rewards])
        turn = observation.step % 2
        return Decision(np.array([1.0 - turn, float(turn)]))


def test_a_policy_sees_rewards_and_its_decision_rules_the_next_round(tmp_path: Path) -> None:
    policy = Watching()
    trainer = mixing_grpo(tmp_path, mixing=policy)
    trainer.train()
    assert [found.groups.tolist() for found in policy.seen] == [[4, 0], [0, 4], [4, 0], [0, 4]]
    assert np.isnan(policy.seen[0].reward[1])
    assert trainer.ledger.rewards()["reward"].dropna().tolist() == [
        found.reward[step % 2] for step, found in enumerate(policy.seen)
    ]


@pytest.mark.parametrize("policy", [MTGRPO, Learnability])
def test_a_resumed_run_is_the_run_to_the_bit(tmp_path: Path, policy: type[Policy]) -> None:
    """In the middle of a log interval, with a policy that has moved, momentum and a falling rate."""
    options = {"max_steps": 6, "lr_scheduler_type": "linear", "logging_steps": 3, "save_strategy": "steps"}
    options |= {"save_steps": 4, "num_iterations": 2}
    whole = mixing_grpo(tmp_path / "run", mixing=policy(), **options)
    whole.train()
    again = mixing_grpo(tmp_path / "run", mixing=policy(), **options)
    again.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-4"))
    assert torch.equal(weights_of(again), weights_of(whole))
    assert len(set(whole.ledger.to_pandas()["weight"])) > 2
    assert again.ledger.rewards().equals(whole.ledger.rewards())
    last = [next(e for e in reversed(t.state.log_history) if "loss" in e) for t in (whole, again)]
    names = [key for key in last[0] if key.startswith(("loss", "reward/", "silent/", "length/", "weight/"))]
    assert len(names) == 9
    assert [last[1][key] for key in names] == [last[0][key] for key in names]


@pytest.mark.parametrize(
    ("option", "changes"),
    [
        ("reward_funcs", {"rewards": {"a": any_half}}),
        ("reward_funcs", {"rewards": {**REWARDS, "c": any_half}}),
        ("columns", {"data": {"a": prompts(0).rename_column("prompt", "text"), "b": prompts(1)}}),
        ("columns", {"data": {"a": prompts(0).rename_column("answer", "stream"), "b": prompts(1)}}),
        ("columns", {"data": [Stream("a", prompts(0), preprocess=lambda row: {**row, "stream": "own"})]}),
        ("columns", {"data": {"a": [{"text": "w1"}] * 4}}),
        ("mixing", {"mixing": "LossChange"}),
        ("mixing", {"mixing": "PiKE"}),
        ("mixing", {"mixing": "auto"}),
        ("batch_size", {"batch_size": 8}),
        ("max_samples_per_micro_batch", {"max_samples_per_micro_batch": 2}),
        ("one_stream_per", {"one_stream_per": "step"}),
        ("gradient_accumulation_steps", {"steps_per_generation": 3}),
    ],
)
def test_what_rounds_cannot_honour_is_refused(tmp_path: Path, option: str, changes: dict[str, Any]) -> None:
    rewards = any_half if "data" in changes else REWARDS
    with refused(option):
        mixing_grpo(tmp_path, **{"rewards": rewards, **changes})


def test_what_is_of_another_kind_is_refused(tmp_path: Path) -> None:
    with refused("reward_funcs", InvalidTypeError, stream="b"):
        mixing_grpo(tmp_path, {"a": any_half, "b": [3]})
    with refused("dataset", InvalidTypeError, stream="a"):
        mixing_grpo(tmp_path, any_half, {"a": prompts(0).to_iterable_dataset(), "b": prompts(1)})
    with refused("args", InvalidTypeError):
        MixingGRPOTrainer(model_of(), any_half, None, prompts(0))


def test_a_round_without_all_of_its_prompts_is_refused(tmp_path: Path) -> None:
    """Both streams end: 6 prompts are a round and a half."""
    data = [Stream("a", prompts(0), max_samples=3), Stream("b", prompts(1), max_samples=3)]
    with refused("max_samples"):
        mixing_grpo(tmp_path, any_half, data, max_steps=-1)
    with refused("budget"):
        mixing_grpo(tmp_path, any_half, max_steps=-1, budget_samples=10)


def test_a_buffer_keeps_the_prompts_that_teach_and_scores_them_by_their_source(tmp_path: Path) -> None:
    """Rewards by stream refuse rows of others; what the buffer knows of a prompt is the spread of its last group."""
    data = {**sets(), "learnable": ReplayBuffer(6, Learnable())}
    spreads: list[float] = []
    trainer = mixing_grpo(tmp_path, data=data, mixing=ReplayRatio(0.25, policy=Uniform()), max_steps=6)
    note = trainer._round_rewards.note_rewards
    trainer._round_rewards.note_rewards = lambda *of_round: spreads.extend(found := note(*of_round)) or found
    trainer.train()
    counts = trainer.ledger.to_pandas().groupby("stream")["count"].sum()
    assert counts["learnable"] == 5
    selection = data["learnable"].selection
    assert len(selection._spreads) == 6
    assert set(selection._spreads.tolist()) <= {float(spread) for spread in spreads}
    assert np.isfinite(trainer.ledger.rewards().query("stream == 'learnable'")["reward"]).sum() == 5


def test_a_policy_by_rewards_is_refused_where_nothing_is_generated(tmp_path: Path) -> None:
    with refused("mixing"):
        build(tmp_path, MTGRPO())


def test_the_divergence_of_the_only_stream_is_that_of_trl(tmp_path: Path) -> None:
    """Over several forwards of a round, by tokens; the reference is loaded from the folder of the model."""
    model_of().save_pretrained(tmp_path / "base")
    args = arguments(tmp_path / "out", beta=0.1, max_steps=3, importance_sampling_level="token")
    model = LlamaForCausalLM.from_pretrained(tmp_path / "base")
    trainer = MixingGRPOTrainer(model, REWARDS, args, sets(), processing_class=tokenizer(), mixing={"a": 1, "b": 0})
    trainer.train()
    table = trainer.ledger.rewards().query("stream == 'a'")["kl"].tolist()
    logs = [entry for entry in trainer.state.log_history if "kl" in entry]
    assert table == [entry["kl/a"] for entry in logs]
    assert table[-1] > 0
    # TRL averages the forwards of a round, which have unequally many tokens.
    np.testing.assert_allclose(table, [entry["kl"] for entry in logs], rtol=0.2)
    assert not [entry for entry in logs if "kl/b" in entry]
