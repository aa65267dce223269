"""Rounds of generation on two ranks: the same prompts, groups and updates as in one process."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from mixer.policies import MTGRPO
from tests.mixer.trainer.grpo.cases import OPTIONS, any_half, mixing_grpo, weights_of
from tests.ranks.warm import Results, launched
from tests.refusals import refused


def completed(prompts: list[str], trainer: Any) -> dict[str, Any]:
    """Completions by the prompt and the place in its group, for ranks that draw other random numbers."""
    ids = [trainer.processing_class(prompt)["input_ids"] for prompt in prompts]
    own = [
        [5 + (3 * own[0] + 7 * (row % 4) + place) % 40 for place in range(2 + row % 4)] for row, own in enumerate(ids)
    ]
    return {"prompt_ids": ids, "completion_ids": own, "logprobs": None}


def trained(folder: Path, per_device: int = 8) -> list[Any]:
    """Three rounds, each used twice, of which the first draws more prompts of one stream."""
    options = {"gradient_accumulation_steps": 1, "optim": "sgd", "learning_rate": 1.0, "max_steps": 3}
    options |= {"per_device_train_batch_size": per_device, "num_iterations": 2, "rollout_func": completed}
    trainer = mixing_grpo(folder / str(per_device), any_half, mixing=MTGRPO(decay=0.0), **options)
    before = weights_of(trainer)
    trainer.train()
    assert (weights_of(trainer) - before).abs().max() > 1e-3
    table = trainer.ledger.rewards() if trainer.is_world_process_zero() else None
    return [weights_of(trainer), trainer.mixing.decision.weights, table, trainer.state.log_history]


def resumed(folder: Path) -> bool:
    """Whether a resumed run ends as the whole one, with completions drawn at random."""
    options = {"max_steps": 4, "save_strategy": "steps", "save_steps": 2, "per_device_train_batch_size": 4}
    whole = mixing_grpo(folder / "run", any_half, mixing=MTGRPO(), **options)
    whole.train()
    again = mixing_grpo(folder / "run", any_half, mixing=MTGRPO(), **options)
    again.train(resume_from_checkpoint=str(folder / "run" / "checkpoint-2"))
    return torch.equal(weights_of(whole), weights_of(again))


def too_few(folder: Path) -> None:
    """Three prompts a round, which two ranks cannot share."""
    with refused("generation_batch_size"):
        mixing_grpo(folder, any_half, per_device_train_batch_size=6, gradient_accumulation_steps=1)


results = launched(trained, resumed, too_few)


def test_two_ranks_train_as_one_process(results: Results, tmp_path: Path) -> None:
    weights, decision, table, logs = trained(tmp_path, 2 * OPTIONS["per_device_train_batch_size"])
    for own in (result["trained"] for result in results):
        torch.testing.assert_close(own[0], weights, rtol=0, atol=1e-6)
        np.testing.assert_allclose(own[1], decision, rtol=1e-12)
    first = results[0]["trained"]
    pd.testing.assert_frame_equal(first[2], table)
    assert [entry["reward"] for entry in first[3][:3]] == pytest.approx([entry["reward"] for entry in logs[:3]])


def test_a_resumed_run_is_the_run_to_the_bit(results: Results) -> None:
    assert [result["resumed"] for result in results] == [True, True]


def test_ranks_that_cannot_share_the_prompts_are_refused(results: Results) -> None:
    assert [result["too_few"] for result in results] == [None, None]
