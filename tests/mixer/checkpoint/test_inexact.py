"""Runs that go on with another size or gradient than their checkpoint's: as if uncut, on purpose, or refused."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, TrainerCallback

from mixer import Budget, GradientAggregation, MixingTrainer, schedules
from mixer.checkpoint.checkpoint_files import METHODS_ENTRY, STATE_FILE, complete
from tests.helpers import Tokens, weights_of
from tests.mixer.aggregated import Watch, make_trainer
from tests.mixer.trainer import runs
from tests.refusals import refused

STREAMS = {"a": Tokens(40, 1), "b": Tokens(30, 2)}


def _train(folder: Path, resume: Any = None, **changes: Any) -> MixingTrainer:
    saved = {"save_strategy": "steps", "save_steps": 3, "logging_steps": 2, "max_steps": 6}
    options = {"train_dataset": STREAMS, "batch_size": 6, "epoch_size": 60, "mixing": "Uniform", **changes}
    return runs.train(folder, resume=resume, **saved, **options)


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> MixingTrainer:
    return _train(tmp_path_factory.mktemp("whole"))


@pytest.fixture
def checkpoint(unbroken: MixingTrainer, tmp_path: Path) -> Path:
    """Of step 3, in a copy of the run."""
    return Path(shutil.copytree(str(unbroken.args.output_dir), tmp_path / "run")) / "checkpoint-3"


MORE = {"train_dataset": {**STREAMS, "c": Tokens(20, 3)}}


@pytest.mark.parametrize(
    ("changes", "totals", "seen"), [(MORE, [6] * 6, [15, 15, 6]), ({"batch_size": 4}, [6, 6, 6, 4, 4, 4], [15, 15])]
)
def test_a_run_takes_up_one_stream_more_or_another_size(checkpoint, changes, totals, seen) -> None:
    with refused("allow_inexact"):
        _train(checkpoint.parent, checkpoint, **changes)
    rows = _train(checkpoint.parent, checkpoint, allow_inexact=True, **changes).ledger.to_pandas()
    assert rows.groupby("step")["count"].sum().tolist() == totals
    assert rows[rows["step"] <= 3]["stream"].unique().tolist() == ["a", "b"]
    assert rows[rows["step"] == 6]["seen"].tolist() == seen


def test_weights_that_were_saved_again_in_shards_are_taken_if_told_to(checkpoint, caplog, unbroken) -> None:
    model = LlamaForCausalLM.from_pretrained(checkpoint)
    model.config.made_of = "shards"  # another size than the run's own
    (checkpoint / "model.safetensors").unlink()
    model.save_pretrained(checkpoint, max_shard_size="5KB")
    with refused("resume_from_checkpoint"):
        _train(checkpoint.parent, checkpoint)
    with caplog.at_level("WARNING"):
        resumed = _train(checkpoint.parent, checkpoint, allow_inexact=True)
    assert f"Resumed inexactly from {checkpoint}: its weights were saved again" in caplog.text
    assert torch.equal(weights_of(resumed.model), weights_of(unbroken.model))
    next(checkpoint.glob("model-00001-*")).unlink()
    with refused("resume_from_checkpoint"):
        _train(checkpoint.parent, checkpoint, allow_inexact=True)


def test_a_run_takes_up_another_batch_size_or_accumulation_as_the_trainer_does(tmp_path: Path) -> None:
    """With `allow_inexact` alone; step and learning rate go on as the Trainer's do."""
    sizes = {"batch_size": None, "epoch_size": None, "mixing": None, "train_dataset": Tokens(24, 1)}
    sizes |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2}
    whole = _train(tmp_path, **sizes)
    others: list[dict[str, Any]] = [{"gradient_accumulation_steps": 3}, {"per_device_train_batch_size": 4}]
    for number, changes in enumerate(others):
        with refused("batch_size"):
            _train(tmp_path / str(number), tmp_path / "checkpoint-3", **{**sizes, **changes})
        resumed = _train(tmp_path / str(number), tmp_path / "checkpoint-3", **{**sizes, **changes}, allow_inexact=True)
        rows = resumed.ledger.to_pandas()
        samples = 2 * 3 if number == 0 else 4 * 2
        assert rows["count"].tolist()[-3:] == [samples] * 3
        assert (rows["seen"] - rows["count"]).tolist()[-3] == 3 * 4
        assert runs.logged(resumed, "learning_rate") == runs.logged(whole, "learning_rate")


torchjd = pytest.importorskip("torchjd.aggregation")


def cut(folder: Path, conflict: Any, **changes: Any) -> Path:
    make_trainer(folder / "cut", conflict, max_steps=3, save_strategy="steps", save_steps=3, **changes).train()
    return folder / "cut" / "checkpoint-3"


def resume(folder: Path, conflict: Any, allow_inexact: bool = False, **changes: Any) -> MixingTrainer:
    trainer = make_trainer(folder / "resumed", conflict, max_steps=6, allow_inexact=allow_inexact, **changes)
    trainer.train(resume_from_checkpoint=str(folder / "cut" / "checkpoint-3"))
    return trainer


@pytest.mark.parametrize(
    ("before", "after", "was", "is_now"),
    [
        ("pcgrad", "mgda", r"conflict=PCGrad\(\)", r"conflict=MGDA\(epsilon=0.001, max_iters=100\)"),
        ("pcgrad", None, r"conflict=PCGrad\(\)", "nothing"),
        (None, "pcgrad", "nothing", r"conflict=PCGrad\(\)"),
        ("cagrad", torchjd.CAGrad(c=0.2), r"conflict=CAGrad\(c=0.4", r"conflict=CAGrad\(c=0.2"),
    ],
)
def test_another_is_refused_with_the_difference(before: Any, after: Any, was: str, is_now: str, tmp_path: Path) -> None:
    cut(tmp_path, before)
    with refused("allow_inexact") as caught:
        resume(tmp_path, after)
    assert re.search(rf"gradient were {was}.* and are {is_now}", str(caught.value))
    if "MGDA" not in is_now:
        assert resume(tmp_path, after, allow_inexact=True).state.global_step == 6


def test_the_same_one_given_otherwise_and_a_checkpoint_that_does_not_say_are_taken(tmp_path: Path) -> None:
    checkpoint = cut(tmp_path, "upgrad")
    state = json.loads((checkpoint / STATE_FILE).read_text())
    assert state[METHODS_ENTRY][0].startswith("conflict=UPGrad(")
    for conflict in (torchjd.UPGrad(), GradientAggregation(torchjd.UPGrad())):
        assert resume(tmp_path, conflict, methods=[Watch()]).state.global_step == 6  # watching is free
    del state[METHODS_ENTRY]
    (checkpoint / STATE_FILE).write_text(json.dumps(state))
    complete(checkpoint)
    assert resume(tmp_path, "mgda").state.global_step == 6


class Acting(TrainerCallback):
    def __init__(self, sizes: dict[int, int | None], stops: tuple[int, ...]):
        self.sizes, self.stops = sizes, stops
        self.trainer: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step in self.sizes:
            self.trainer.mixing.set_batch_size(self.sizes[state.global_step])
        if state.global_step in self.stops:
            control.should_epoch_stop = True


def growing(step: int, size: int) -> int:
    return 3 + 2 * step


# What each run does, and the steps after which it is cut off; negative ones are counted from its end.
CASES: dict[str, tuple[dict[str, Any], list[int]]] = {
    "larger by hand": ({"sizes": {2: 9, 4: None}}, [3]),
    "a budget in samples": ({"batch_size": growing, "budget": Budget(samples=33)}, [2]),
    "the rest is dropped": ({"sizes": {3: 12}, "num_train_epochs": 3, "dataloader_drop_last": True}, [3, -1]),
    "epochs are stopped": ({"batch_size": growing, "stops": (2, 5), "num_train_epochs": 4}, [2, 5]),
    "Seesaw": ({"batch_size": schedules.Seesaw(maximum=16), "num_train_epochs": 3}, [5]),
}


def make(folder: Path, case: str) -> tuple[MixingTrainer, Acting]:
    saved = {"save_strategy": "steps", "save_steps": 1, "optim": "adamw_torch"}
    sized = {"max_steps": -1, "num_train_epochs": 2, "per_device_train_batch_size": 4}
    options = {"batch_size": None, **saved, **sized, **CASES[case][0]}
    acting = Acting(options.pop("sizes", {}), options.pop("stops", ()))
    acting.trainer = runs.make(folder, callbacks=[acting], train_dataset=Tokens(20, 1), **options)
    return acting.trainer, acting


@pytest.mark.parametrize("case", CASES)
def test_it_ends_as_if_nobody_had_cut_it_off(tmp_path: Path, case: str) -> None:
    whole, acting = make(tmp_path / "whole", case)
    whole.train()
    steps = whole.state.global_step
    for step in [cut if cut > 0 else steps + cut for cut in CASES[case][1]]:
        folder = tmp_path / f"cut-{step}"
        shutil.copytree(tmp_path / "whole", folder)
        for later in range(step + 1, steps + 1):
            shutil.rmtree(folder / f"checkpoint-{later}")
        resumed, _ = make(folder, case)
        # What a callback set after the checkpoint was written is gone with the process: it is set again.
        if step in acting.sizes:
            resumed.mixing.set_batch_size(acting.sizes[step])
        resumed.train(resume_from_checkpoint=True)
        assert resumed.state.global_step == steps
        assert resumed.state.epoch == whole.state.epoch
        assert resumed.state.num_train_epochs == whole.state.num_train_epochs
        assert resumed.ledger.clock().equals(whole.ledger.clock())
        assert torch.equal(weights_of(resumed.model), weights_of(whole.model))
