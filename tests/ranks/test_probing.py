"""Probed runs on two ranks."""

from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist

from mixer import BalancedPiKE, MixingTrainer, PiKE, Probing, schedules
from tests.mixer.measurements.test_probing_resume import SAVED, probed_end
from tests.mixer.probed import BIG, assert_found, build, is_untouched, loss_of, train
from tests.ranks.launch import message_of
from tests.ranks.warm import Results, launched, some

SKETCH = Probing(sketch_size=BIG)
HELD = Probing(mode="exact", exact_accumulate=True)
SIZES = (13, 2, 5, 3)  # of which a rank has none in some micro-batches


def changing() -> schedules.Schedule:
    return schedules.Function(lambda step, size: SIZES[step % len(SIZES)], initial=SIZES[0])


CASES: dict[str, dict[str, Any]] = {
    "sketched": {"probe": SKETCH},
    "held": {"probe": HELD},
    "a mean over rows": {"model": "bert-classifier", "probe": HELD},
    "one stream each": {"probe": Probing(homogeneous=True, sketch_size=BIG)},
    "weighed losses": {"mixing": BalancedPiKE(uses_loss_weights=True, interval_steps=1), "probe": SKETCH},
    "by tokens": {"probe": SKETCH, "max_tokens_per_micro_batch": 40},
    "by length": {"probe": SKETCH, "args": {"train_sampling_strategy": "group_by_length"}},
    "checkpointing": {"probe": SKETCH, "args": {"gradient_checkpointing": True}},
}


def gathered(groups: list[Any]) -> list[Any]:
    parts: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(parts, groups)
    return list(chain.from_iterable(parts))


def _build(folder: Path, **changes: Any) -> MixingTrainer:
    args = {"max_steps": 4, "per_device_train_batch_size": 3, **changes.pop("args", {})}
    return build(folder, **{"mixing": PiKE(1), "batch_size": changing(), "epoch_size": 999, "args": args, **changes})


def trained(name: str, folder: Path) -> dict[str, Any]:
    """A run beside the reference: what is wrong, if anything is, and what both ranks have to have alike."""
    run = train(_build(folder / name, **CASES[name]), loss_of, name == "one stream each", gather=gathered)
    problem = ""
    try:
        assert sorted(run.found) == [1, 2, 3, 4]
        assert_found(run.frame, run.expected)
        assert is_untouched(run.trainer.model)
    except AssertionError as error:
        problem = f"wrong: {error!r}"
    return {
        "problem": problem,
        "frame": run.frame.to_json(double_precision=15),
        "weights": list(run.trainer.mixing.weights.values()),
        "has_paddings": bool(gathered([run.num_paddings] * bool(run.num_paddings))),
    }


def resumed(folder: Path) -> list[str]:
    """Names what differs between a run and one that went on from the middle of it."""
    ends, args = [], {**SAVED, "max_steps": 6}
    for checkpoint in (None, str(folder / "resumed" / "checkpoint-3")):
        trainer = _build(folder / "resumed", mixing=BalancedPiKE(interval_steps=2), probe=Probing(), args=args)
        trainer.train(resume_from_checkpoint=checkpoint)
        ends.append(probed_end(trainer) if trainer.is_world_process_zero() else {})
        dist.barrier()
    return [part for part in ends[0] if ends[0][part] != ends[1][part]]


def refused(folder: Path) -> str:
    return message_of(lambda: _build(folder, probe=Probing(mode="exact")))


FEW = ("sketched", "one stream each")
results = launched(
    *(*(partial(trained, name) for name in FEW), resumed, refused),
    rare=[partial(trained, name) for name in CASES if name not in FEW],
)


@pytest.mark.parametrize("name", some(CASES, FEW))
def test_both_find_what_a_backward_for_each_sample_of_both_finds(results: Results, name: str) -> None:
    first, second = (result[name] for result in results)
    assert first["problem"] == ""
    assert first == second
    assert first["has_paddings"] or name != "one stream each"


def test_runs_go_on_from_a_checkpoint_and_an_exact_probe_of_two_ranks_is_refused(results: Results) -> None:
    for result in results:
        assert result["resumed"] == []
        told = (
            "InvalidValueError: probe.mode='exact' needs the gradient of one micro-batch on one rank, but there are 2"
        )
        assert result["refused"].startswith(told)
