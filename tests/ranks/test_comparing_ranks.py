"""Losses above those of a reference model, and after the step, on two ranks."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch.distributed as dist

from mixer import MixingTrainer
from mixer.measurements import ExcessLoss, LossAfter
from tests.mixer.comparing import Tagger, Watching, build
from tests.mixer.measure.test_comparing import Silent, compared_entries
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched, some

BOTH = (ExcessLoss(), LossAfter())


def _seen(trainer: MixingTrainer) -> Any:
    return np.array([[seen[ExcessLoss], seen[LossAfter]] for seen in trainer.mixing.policy.seen])


def observed(name: str, folder: Path) -> dict[str, Any]:
    """Six steps of nine samples, the fifth of one, which leaves a rank without; and how many paddings it had."""
    args = {"max_steps": 6, "per_device_train_batch_size": 2}
    trainer = build(folder / name, Watching(*BOTH), args=args, **WAYS[name])
    paddings, step = [], trainer._parts.steps.train

    def counting(model: Any, batch: Any, num_items: Any = None) -> Any:
        paddings.append(sum(micro.is_padding for micro in batch.micro_batches))
        return step(model, batch, num_items)

    trainer._parts.steps.train = counting  # type: ignore[method-assign]
    trainer.train()
    kept = (
        trainer.ledger.comparisons()[[need.column for need in BOTH]].to_numpy()
        if trainer.is_world_process_zero()
        else None
    )
    found = {"paddings": sum(paddings), "entries": compared_entries(trainer), "kept": kept}
    return {"numbers": _seen(trainer), **found}


def refused(folder: Path) -> list[str]:

    def of(*model: Any, **options: Any) -> str:
        return message_of(build(folder / "refused", Watching(ExcessLoss()), *model, **options).train)

    return [of(Silent()), of(reference_model=Tagger(seed=dist.get_rank()))]


WAYS: dict[str, dict[str, Any]] = {"mixed": {}, "by tokens": {"max_tokens_per_micro_batch": 40}}
results = launched(partial(observed, "mixed"), rare=[partial(observed, "by tokens"), refused])


@pytest.mark.parametrize("name", some(WAYS, ["mixed"]))
def test_both_see_log_and_keep_what_one_process_sees(results: Results, name: str, tmp_path: Path) -> None:
    first, second = (result[name] for result in results)
    np.testing.assert_array_equal(first["numbers"], second["numbers"])
    trainer = build(tmp_path, Watching(*BOTH), args={"max_steps": 6, "per_device_train_batch_size": 64})
    trainer.train()
    alone = _seen(trainer)
    np.testing.assert_allclose(first["numbers"], alone, rtol=0, atol=1e-12)
    assert np.nanmax(alone[:, 0]) > 0.1
    np.testing.assert_array_equal(first["kept"], first["numbers"].transpose(0, 2, 1).reshape(-1, 2))
    assert first["entries"] == second["entries"]
    assert len(first["entries"]) == 6
    assert all(entry.keys() >= {"excess_loss/a", "loss_after/a"} for entry in first["entries"][:4])
    assert first["paddings"] + second["paddings"] > 0 or name != "mixed"


@pytest.mark.full
def test_what_cannot_be_compared_ends_all_ranks_alike(results: Results) -> None:
    assert results[0]["refused"] == results[1]["refused"]
    own, ranks = results[0]["refused"]
    assert own.startswith("ValueError: The policy needs the loss of each item")
    assert ranks.startswith("ValueError: reference_model: its weights are not the same on all ranks")
