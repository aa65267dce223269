"""Probed runs that are cut off go on as if they had not been, to the bit; and steps that run out of memory."""

from pathlib import Path
from typing import Any

import pytest

from mixer import BalancedPiKE, MixingTrainer, PiKE, Probing, schedules
from tests.helpers import build_model
from tests.mixer.checkpoint.test_resume import assert_same, end_of
from tests.mixer.probed import BIG, assert_found, build, is_untouched, steps_of, train
from tests.mixer.trainer.test_recovery import limit_memory
from tests.ranks.warm import some

SAVED = {"save_strategy": "steps", "save_steps": 1, "max_steps": 7, "logging_steps": 4, "optim": "adamw_torch"}
SMALL = {**SAVED, "per_device_train_batch_size": 5}
RUNS: dict[str, Any] = {
    "PiKE": lambda: {"mixing": PiKE(3)},
    "sketched": lambda: {"mixing": PiKE(3), "args": SMALL},
    "conceptual": lambda: {"mixing": PiKE(2, mode="conceptual", step_sharpness=0.2)},
    "balanced": lambda: {"mixing": BalancedPiKE(interval_steps=3, uses_loss_weights=True)},
    "noise": lambda: {"batch_size": schedules.NoiseScale(interval_steps=3, initial=12, maximum=60)},
    "norm": lambda: {"batch_size": schedules.NormTest(interval_steps=3, initial=12, maximum=60), "mixing": PiKE(2)},
    "one stream each": lambda: {"mixing": PiKE(3), "probe": Probing(homogeneous=True), "args": SMALL},
}


def probed_end(trainer: MixingTrainer) -> dict[str, Any]:
    gradients = trainer.ledger.gradients()
    numbers = gradients.map(lambda value: value.tolist() if hasattr(value, "tolist") else value)
    return {**end_of(trainer), "gradients": repr(numbers.to_dict("list")), "steps": steps_of(trainer)}


@pytest.mark.parametrize("name", some(RUNS, ("sketched",)))
def test_a_run_that_is_cut_off_goes_on_to_the_bit(name: str, tmp_path: Path) -> None:
    def trainer_of() -> MixingTrainer:
        return build(tmp_path / "run", **{"probe": Probing(), "args": SAVED, "epoch_size": 999, **RUNS[name]()})

    whole = trainer_of()
    whole.train()
    expected = probed_end(whole)
    assert expected["steps"]
    for step in (2, 3, 4):  # before, right at and after a measurement
        again = trainer_of()
        again.train(resume_from_checkpoint=str(tmp_path / "run" / f"checkpoint-{step}"))
        assert_same(probed_end(again), expected)


@pytest.mark.parametrize("where", ["forward", "training", "backward"])
@pytest.mark.parametrize("homogeneous", [False, True])
def test_a_step_that_is_repeated_is_measured_once(where: str, homogeneous: bool, tmp_path: Path) -> None:
    model, probe = build_model("llama"), Probing(homogeneous=homogeneous, sketch_size=BIG)
    trainer = build(tmp_path, model, probe, mixing=PiKE(1), args={"auto_find_batch_size": True, "max_steps": 2})
    limit_memory(model, 3, where)
    seen: list[Any] = []
    halve = trainer._parts.agreement._halve

    def look(*args: Any) -> None:
        halve(*args)
        seen.append((trainer._parts.probe._present, is_untouched(model)))

    trainer._parts.agreement._halve = look  # type: ignore[method-assign]
    run = train(trainer, plain=build_model("llama"))
    assert trainer._parts.run.splitting.cap.max_samples <= 3
    assert_found(trainer.ledger.gradients(), run.expected, has_variance=not homogeneous)
    assert is_untouched(model)
    assert seen == [(None, True)] * len(seen) != []  # a measurement that was in the way was let go of
