"""One iterable data set, beside the plain Trainer: each pass over it is an epoch."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import datasets
import pytest
import torch
from transformers import EarlyStoppingCallback, Trainer, TrainerCallback

from mixer import Budget, MixingTrainer
from mixer.schedules import AdaBatch
from tests.helpers import Tokens, arguments, build_model
from tests.mixer.trainer.runs import make

ROWS = [{name: value.tolist() for name, value in row.items()} for row in Tokens(20, 2).rows]
EVENTS = ("train_begin", "epoch_begin", "step_begin", "step_end", "log", "evaluate", "save", "epoch_end", "train_end")
EPOCHS = {f"{kind}_strategy": "epoch" for kind in ("eval", "save", "logging")}
AFTER_STEPS = {"save_strategy": "steps", "save_steps": 1, "eval_strategy": "epoch", "save_total_limit": None}


def _rows() -> Iterator[dict[str, Any]]:
    yield from ROWS


class Events(TrainerCallback):
    def __init__(self) -> None:
        self.seen: list[tuple[Any, ...]] = []
        for name in EVENTS:
            setattr(self, f"on_{name}", lambda _, state, *__, name=name, **___: self.note(name, state))

    def note(self, name: str, state: Any) -> None:
        self.seen.append((name, state.global_step, state.epoch, state.num_train_epochs, state.max_steps))


def run(kind: Any, folder: Path, resume: Any = None, callbacks: Any = (), **changes: Any) -> tuple[Trainer, Events]:
    options = {"max_steps": 8, "per_device_train_batch_size": 8, "use_cpu": True, **changes}
    data = datasets.IterableDataset.from_generator(_rows)
    given: dict[str, Any] = {
        "train_dataset": data,
        "eval_dataset": Tokens(4, 9),
        "callbacks": [*callbacks, events := Events()],
    }
    if kind is MixingTrainer:
        trainer: Trainer = make(folder, **given, **options)
    else:
        trainer = Trainer(build_model("llama"), arguments(folder, **options), **given)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, events


def saved_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.glob("checkpoint-*"))


@pytest.mark.parametrize(
    "options",
    [
        {**EPOCHS, "save_total_limit": None},
        {**EPOCHS, "per_device_train_batch_size": 5},  # the last step of a pass is whole
        {**EPOCHS, "max_steps": 6},  # the run ends with a pass
        {"max_steps": 7, "eval_strategy": "steps", "eval_steps": 2, "dataloader_num_workers": 1},
        {**EPOCHS, "load_best_model_at_end": True, "metric_for_best_model": "loss", "max_steps": 30, "stops": True},
    ],
)
def test_its_events_epochs_checkpoints_and_weights_are_the_trainers(tmp_path: Path, options: dict[str, Any]) -> None:
    stops = options.pop("stops", False)
    folders = {kind: tmp_path / kind.__name__ for kind in (Trainer, MixingTrainer)}
    stopping = {kind: [EarlyStoppingCallback(1)] if stops else [] for kind in folders}
    (plain, expected), (ours, found) = (run(kind, folders[kind], None, stopping[kind], **options) for kind in folders)
    assert found.seen == expected.seen
    assert saved_in(folders[MixingTrainer]) == saved_in(folders[Trainer])
    weights = zip(ours.model.parameters(), plain.model.parameters(), strict=True)
    assert all(torch.equal(own, other) for own, other in weights)
    assert not stops or plain.state.global_step < 30


@pytest.mark.parametrize(
    ("options", "ends"),
    [
        ({"max_steps": 7}, [3, 6, 7]),
        ({"batch_size": AdaBatch([2], unit="steps", initial=4), "max_steps": 8}, [4, 7, 8]),
        ({"batch_size": AdaBatch(every=1, initial=4), "max_steps": 8}, [5, 8]),
        ({"budget": Budget(samples=47), "max_steps": -1}, [3, 6, 7]),
    ],
)
def test_a_run_goes_on_from_every_step_and_its_passes_end_where_they_would(
    tmp_path: Path, options: dict[str, Any], ends: list[int]
) -> None:
    whole, expected = run(MixingTrainer, tmp_path / "whole", **AFTER_STEPS, **options)
    assert [step for name, step, *_ in expected.seen if name == "epoch_end"] == ends
    for step in range(1, whole.state.global_step + 1, 2):
        checkpoint = tmp_path / "whole" / f"checkpoint-{step}"
        resumed, found = run(MixingTrainer, tmp_path / str(step), checkpoint, **AFTER_STEPS, **options)
        after = [event for event in expected.seen if event[1] > step or (event[0] == "epoch_end" and event[1] == step)]
        kinds = ("step_end", "epoch_end")
        assert [event for event in found.seen if event[0] in kinds] == [one for one in after if one[0] in kinds]
        weights = zip(resumed.model.parameters(), whole.model.parameters(), strict=True)
        assert all(torch.equal(own, other) for own, other in weights)
