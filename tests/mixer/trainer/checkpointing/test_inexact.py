"""Going on on purpose although something is not what it was."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaForCausalLM

from mixer import LossChange, MixingTrainer, PiKE, Stream, Uniform
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.planner import Planner
from tests.helpers import Tokens, arguments, build_model, weights_of


def _mixing(lengths: dict[str, int], policy: Any = None, seed: int = 0) -> Mixing:
    streams = [Stream(name, range(length), shuffle=False) for name, length in lengths.items()]
    clock = Clock(batch_size=6, epoch_size=sum(lengths.values()), budget=Budget(epochs=4))
    return Mixing(Planner(streams, seed=seed), policy or Uniform(), clock)


def _advance(mixing: Mixing, num_steps: int) -> None:
    for _ in range(num_steps):
        plan = mixing.next_plan()
        assert plan is not None
        mixing.observe(plan, np.arange(len(mixing.names)) + 1.0, plan.counts * 10)


def test_streams_that_stay_go_on_where_they_were_and_a_new_one_begins() -> None:
    before = _mixing({"a": 30, "b": 40})
    _advance(before, 3)
    after = _mixing({"new": 20, "b": 40, "a": 30})
    with pytest.raises(ValueError, match=r"the streams were \['a', 'b'\] when .* \['new', 'b', 'a'\] now"):
        after.load_state_dict(before.state_dict())
    after = _mixing({"new": 20, "b": 40, "a": 30})
    after.load_state_dict(before.state_dict(), allow_inexact=True)
    assert after.seen.tolist() == [0, 9, 9]
    assert after.num_tokens.tolist() == [0, 90, 90]
    plan = after.next_plan()
    assert plan is not None
    assert (plan.step, plan.starts.tolist(), plan.counts.tolist()) == (4, [0, 9, 9], [2, 2, 2])


def test_a_stream_that_is_gone_is_forgotten() -> None:
    before = _mixing({"a": 30, "b": 40})
    _advance(before, 2)
    after = _mixing({"b": 40})
    after.load_state_dict(before.state_dict(), allow_inexact=True)
    plan = after.next_plan()
    assert plan is not None
    assert (plan.starts.tolist(), plan.counts.tolist()) == ([6], [6])


def test_a_stream_of_another_length_goes_on_after_as_many_passes() -> None:
    before = _mixing({"a": 12, "b": 12})
    _advance(before, 6)  # 18 samples each: one and a half passes
    after = _mixing({"a": 12, "b": 40})
    after.load_state_dict(before.state_dict(), allow_inexact=True)
    plan = after.next_plan()
    assert plan is not None
    assert plan.starts.tolist() == [18, 60]


def test_the_clock_stays_at_its_step() -> None:
    before = _mixing({"a": 12, "b": 12})
    _advance(before, 6)
    after = _mixing({"a": 12, "b": 30})
    after.load_state_dict(before.state_dict(), allow_inexact=True)
    assert (after.clock.step, after.clock.epoch) == (6, pytest.approx(6 / 7))


@pytest.mark.parametrize("policy", [Uniform, LossChange])
def test_a_policy_of_another_kind_starts_anew(policy: Any) -> None:
    before = _mixing({"a": 30, "b": 40}, LossChange(num_warmup_observations=1))
    _advance(before, 5)
    after, fresh = _mixing({"a": 30, "b": 41}, policy()), _mixing({"a": 30, "b": 41}, policy())
    after.load_state_dict(before.state_dict(), allow_inexact=True)
    is_same_kind = policy is LossChange
    assert (after.weights == fresh.weights) is not is_same_kind
    assert (after.policy.state_dict() == before.policy.state_dict()) is is_same_kind


def test_a_policy_that_remembers_other_things_starts_anew() -> None:
    before, after = _mixing({"a": 30, "b": 20}, PiKE()), _mixing({"a": 30, "b": 20}, PiKE(mode="conceptual"))
    _advance(before, 3)
    with pytest.raises(ValueError, match=r"remembers .*'gram'"):
        after.load_state_dict(before.state_dict())
    after.load_state_dict(before.state_dict(), allow_inexact=True)
    _advance(after, 1)
    assert after.clock.step == 4


def test_another_seed_is_another_order() -> None:
    before = _mixing({"a": 30})
    _advance(before, 2)
    with pytest.raises(ValueError, match="the data seed was 0 when the run was saved and is 1 now"):
        _mixing({"a": 30}, seed=1).load_state_dict(before.state_dict())
    after = _mixing({"a": 30}, seed=1)
    after.load_state_dict(before.state_dict(), allow_inexact=True)
    assert after.seen.tolist() == [12]


def _trainer(
    folder: Path, streams: dict[str, Any], max_steps: int, batch_size: Any = 6, **options: Any
) -> MixingTrainer:
    args = arguments(folder, max_steps=max_steps, save_strategy="steps", save_steps=3, logging_steps=2)
    options = {"batch_size": batch_size, "epoch_size": 60, **options}
    return MixingTrainer(build_model("llama"), args, train_dataset=streams, mixing="Uniform", **options)


def test_a_run_takes_up_one_stream_more(tmp_path: Path) -> None:
    streams = {"a": Tokens(40, 1), "b": Tokens(30, 2)}
    _trainer(tmp_path, streams, max_steps=3).train()
    more = {**streams, "c": Tokens(20, 3)}
    with pytest.raises(ValueError, match=r"checkpoint-3: the streams were .* set allow_inexact=True"):
        _trainer(tmp_path, more, max_steps=6).train(resume_from_checkpoint=True)
    trainer = _trainer(tmp_path, more, max_steps=6, allow_inexact=True)
    trainer.train(resume_from_checkpoint=True)
    rows = trainer.ledger.to_pandas()
    assert rows[rows["step"] <= 3]["stream"].unique().tolist() == ["a", "b"]
    last = rows[rows["step"] == 6].set_index("stream")["seen"]
    assert last.to_dict() == {"a": 15, "b": 15, "c": 6}
    assert trainer.state.global_step == 6


def test_a_run_that_fits_is_resumed_exactly_even_if_it_need_not_be(tmp_path: Path) -> None:
    streams = {"a": Tokens(40, 1), "b": Tokens(30, 2)}
    whole = _trainer(tmp_path / "whole", streams, max_steps=6)
    whole.train()
    _trainer(tmp_path / "parts", streams, max_steps=6, allow_inexact=True).train()
    resumed = _trainer(tmp_path / "parts", streams, max_steps=6, allow_inexact=True)
    resumed.train(resume_from_checkpoint=str(tmp_path / "parts" / "checkpoint-3"))
    assert resumed.ledger.to_pandas().equals(whole.ledger.to_pandas())


def _save_in_shards(checkpoint: Path) -> None:
    model = LlamaForCausalLM.from_pretrained(checkpoint)
    model.config.made_of = "shards"  # another size than the run's own
    (checkpoint / "model.safetensors").unlink()
    model.save_pretrained(checkpoint, max_shard_size="5KB")
    assert (checkpoint / "model.safetensors.index.json").is_file()


def test_weights_that_were_saved_again_in_shards_are_taken_if_told_to(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    streams = {"a": Tokens(40, 1), "b": Tokens(30, 2)}
    whole = _trainer(tmp_path, streams, 6)
    whole.train()
    checkpoint = tmp_path / "checkpoint-3"
    _save_in_shards(checkpoint)
    said = r"its weights were saved again, as model\.safetensors\.index\.json; allow_inexact=True uses those"
    with pytest.raises(ValueError, match=said):
        _trainer(tmp_path, streams, 6).train(resume_from_checkpoint=str(checkpoint))
    with caplog.at_level("WARNING"):
        resumed = _trainer(tmp_path, streams, 6, allow_inexact=True)
        resumed.train(resume_from_checkpoint=str(checkpoint))
    assert f"Resumed inexactly from {checkpoint}: its weights were saved again" in caplog.text
    assert torch.equal(weights_of(resumed.model), weights_of(whole.model))


def test_weights_of_which_a_shard_is_missing_are_never_taken(tmp_path: Path) -> None:
    streams = {"a": Tokens(40, 1), "b": Tokens(30, 2)}
    _trainer(tmp_path, streams, 3).train()
    checkpoint = tmp_path / "checkpoint-3"
    _save_in_shards(checkpoint)
    next(checkpoint.glob("model-00001-*")).unlink()
    with pytest.raises(ValueError, match=r"checkpoint-3: (config\.json is torn|model\.safetensors is missing)"):
        _trainer(tmp_path, streams, 6, allow_inexact=True).train(resume_from_checkpoint=str(checkpoint))


def test_the_batch_size_that_is_asked_for_now_rules(tmp_path: Path) -> None:
    streams = {"a": Tokens(40, 1), "b": Tokens(30, 2)}
    _trainer(tmp_path, streams, max_steps=3).train()
    with pytest.raises(ValueError, match=r"batch_size was 6 .* is 4 now.* set allow_inexact=True"):
        _trainer(tmp_path, streams, max_steps=6, batch_size=4).train(resume_from_checkpoint=True)
    trainer = _trainer(tmp_path, streams, max_steps=6, batch_size=4, allow_inexact=True)
    trainer.train(resume_from_checkpoint=True)
    rows = trainer.ledger.to_pandas()
    assert rows.groupby("step")["count"].sum().tolist() == [6, 6, 6, 4, 4, 4]
    assert rows[rows["step"] == 6]["seen"].tolist() == [15, 15]
