"""Mixtures with a stream of unknown length, beside the plain Trainer on interleaved data."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pytest
from transformers import Trainer

from mixer import Budget, MixingTrainer, Stream
from mixer.schedules import AdaBatch, LossChange
from tests.helpers import On, Tokens, build_model
from tests.mixer.trainer.runs import make
from tests.refusals import refused

WEIGHTS = {"web": 3, "small": 1}
SMALL = [{name: value.tolist() for name, value in row.items()} for row in Tokens(5, 2).rows]


def _endless() -> Iterator[dict[str, Any]]:
    while True:
        yield from SMALL


def streams(**options: Any) -> dict[str, Any]:
    web = datasets.IterableDataset.from_generator(_endless)
    return {"web": Stream("web", web, **options) if options else web, "small": Tokens(5, 2)}


class Recorded(On):
    def __init__(self) -> None:
        self.steps: list[tuple[float, float]] = []
        self.epoch_ends: list[tuple[int, float]] = []
        self.saves: list[int] = []
        super().__init__(
            step_end=lambda state, lr_scheduler, **_: self.steps.append((state.epoch, lr_scheduler.get_last_lr()[0])),
            epoch_end=lambda state, **_: self.epoch_ends.append((state.global_step, state.epoch)),
            save=lambda state, **_: self.saves.append(state.global_step),
        )


def trained(folder: Path, resume: Any = None, **options: Any) -> tuple[MixingTrainer, Recorded]:
    options = {"train_dataset": streams(), "mixing": WEIGHTS, "max_steps": -1, **options}
    trainer = make(folder, callbacks=[recorded := Recorded()], **options)
    trainer.train(resume_from_checkpoint=resume)
    return trainer, recorded


def sizes_of(trainer: MixingTrainer) -> list[int]:
    """The samples of each step."""
    rows: list[int] = trainer.ledger.to_pandas().groupby("step")["count"].sum().tolist()
    return rows


@pytest.mark.parametrize(
    "options",
    [
        {"per_device_train_batch_size": 8},
        {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 2},
        {"per_device_train_batch_size": 8, "dataloader_drop_last": True},
    ],
)
def test_the_run_is_the_epoch_as_in_the_trainer_on_interleaved_data(tmp_path: Path, options: dict[str, Any]) -> None:
    options |= {"max_steps": 7, "save_strategy": "steps", "save_steps": 7}
    ours, recorded = trained(tmp_path / "ours", **options)
    small = datasets.Dataset.from_list(SMALL).to_iterable_dataset()
    parts = [part.cast(small.features) for part in (streams()["web"], small)]
    mixed = datasets.interleave_datasets(parts, probabilities=[0.75, 0.25], seed=0, stopping_strategy="all_exhausted")
    plain = Trainer(build_model("llama"), ours.args, train_dataset=mixed, callbacks=[expected := Recorded()])
    plain.args.output_dir = str(tmp_path / "plain")
    plain.train()
    np.testing.assert_allclose(recorded.steps, expected.steps)
    assert (recorded.epoch_ends, recorded.saves) == (expected.epoch_ends, expected.saves) == ([(7, 1.0)], [7])
    assert sizes_of(ours) == [8] * 7
    assert ours.mixing.seen.tolist() == [42, 14]  # 14 of 5 rows: the small stream is repeated
    assert ours.state.log_history[-2]["train_coverage"] == 1.0


@pytest.mark.parametrize(
    ("options", "sizes", "epoch_ends"),
    [
        ({"budget": Budget(samples=30)}, [8, 8, 8, 6], [(4, 1.0)]),
        ({"max_steps": 5, "batch_size": AdaBatch([2, 4], unit="steps", initial=8)}, [8, 8, 16, 16, 32], [(5, 1.0)]),
        ({"num_train_epochs": 2, "epoch_size": 12}, [8, 4, 8, 4], [(2, 1.0), (4, 2.0)]),
        ({"num_train_epochs": 2, "train_dataset": streams(max_samples=7)}, [8, 4, 8, 4], [(2, 1.0), (4, 2.0)]),
        ({"max_steps": 3, "train_dataset": streams(max_samples=7)}, [8, 8, 8], [(3, 1.0)]),
        ({"max_steps": 3, "mixing": {"web": 0, "small": 1}}, [8, 8, 8], [(3, 1.0)]),
        ({"max_steps": 4, "train_dataset": streams(enters_at=0.5)}, [8, 8, 8, 8], [(4, 1.0)]),
    ],
)
def test_only_what_was_asked_for_cuts_a_step(tmp_path: Path, options: Any, sizes: Any, epoch_ends: Any) -> None:
    trainer, recorded = trained(tmp_path, **options)
    assert (sizes_of(trainer), recorded.epoch_ends) == (sizes, epoch_ends)


def test_a_budget_in_tokens_needs_no_length(tmp_path: Path) -> None:
    trainer, recorded = trained(tmp_path, budget=Budget(tokens=200))
    sizes, tokens = sizes_of(trainer), trainer.mixing.num_tokens.sum()
    assert set(sizes) == {8}
    assert tokens - 8 * 12 < 200 <= tokens
    assert recorded.epoch_ends == [(len(sizes), 1.0)]


@pytest.mark.parametrize("options", [{}, {"num_train_epochs": 2}, {"budget": Budget(epochs=1, steps=9)}])
def test_epochs_of_unknown_length_are_refused_with_what_to_set(tmp_path: Path, options: dict[str, Any]) -> None:
    with refused("epoch_size"):
        make(tmp_path, train_dataset=streams(), mixing=WEIGHTS, **{"max_steps": -1, **options})


@pytest.mark.parametrize("option", ["eval_strategy", "save_strategy", "logging_strategy"])
def test_acting_at_the_end_of_an_epoch_that_is_the_run_is_refused(tmp_path: Path, option: str) -> None:
    options = {"train_dataset": streams(), "mixing": WEIGHTS, "max_steps": 7, "eval_dataset": Tokens(4, 9)}
    options |= {option: "epoch"}
    with refused(option, found="epoch"):
        make(tmp_path, **options)
    make(tmp_path, **options, epoch_size=12)


def test_a_schedule_by_epochs_is_refused_where_the_run_is_one(tmp_path: Path) -> None:
    with refused("batch_size"):
        make(tmp_path, train_dataset=streams(), mixing=WEIGHTS, batch_size=LossChange(initial=8, maximum=16))


def _longer(folder: Path, **options: Any) -> tuple[MixingTrainer, Recorded]:
    saved = {"max_steps": 3, "save_strategy": "steps", "save_steps": 3, "lr_scheduler_type": "constant"}
    trained(folder, **saved, **options)
    return trained(folder, resume=str(folder / "checkpoint-3"), **{**saved, "max_steps": 5}, **options)


def _whole(folder: Path, **options: Any) -> tuple[MixingTrainer, Recorded]:
    return trained(folder, max_steps=5, lr_scheduler_type="constant", **options)


@pytest.mark.parametrize("options", [{}, {"batch_size": AdaBatch([2], unit="steps", initial=4)}])
def test_a_run_that_is_made_longer_is_still_one_epoch(tmp_path: Path, options: dict[str, Any]) -> None:
    runs: list[Callable[..., tuple[MixingTrainer, Recorded]]] = [_longer, _whole]
    (ours, recorded), (whole, expected) = (run(tmp_path / run.__name__, **options) for run in runs)
    np.testing.assert_allclose(recorded.steps, expected.steps[3:])
    assert recorded.epoch_ends == expected.epoch_ends == [(5, 1.0)]
    assert np.array_equal(ours.mixing.seen, whole.mixing.seen)
