"""How often a step waits for the device, counted on a stand-in for one, beside a step of the Trainer."""

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from transformers import Trainer

from mixer import LossChange, MarginalValue, PiKE, Safeguard, Stream, Uniform
from tests.helpers import MODEL_DATA, On, Tokens, arguments, build_model, three_streams
from tests.mixer.stand_in import DEVICE, StandIn
from tests.mixer.trainer.runs import make

_OPTIONS: dict[str, Any] = {"max_steps": 5, "logging_steps": 4, "optim": "adamw_torch", "max_grad_norm": 1.0}
_ON_DEVICE = {"use_cpu": False, "dataloader_pin_memory": False}


def _waits(trainer: Trainer, stand_in: StandIn) -> tuple[list[int], int]:
    """How often steps 3 and 4 wait, behind what shows how a loss is normalised; and step 5, with a log entry."""
    assert trainer.args.device == DEVICE
    totals = [0]
    trainer.add_callback(On(step_end=lambda *_, **__: totals.append(stand_in.waits.total())))
    trainer.train()
    third, fourth, with_log = np.diff(totals)[2:].tolist()
    return [third, fourth], with_log


def _waits_of_ours(folder: Path, **changes: Any) -> tuple[list[int], int]:
    with StandIn() as stand_in:
        return _waits(make(folder, **{**_OPTIONS, **_ON_DEVICE, **changes}), stand_in)


def _waits_of_the_trainer(folder: Path, model: str = "llama", **options: Any) -> tuple[list[int], int]:
    with StandIn() as stand_in:
        args = arguments(folder, **{**_OPTIONS, **_ON_DEVICE, **options})
        return _waits(Trainer(build_model(model), args, train_dataset=Tokens(128, 1, MODEL_DATA[model])), stand_in)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> list[int]:
    return _waits_of_the_trainer(tmp_path_factory.mktemp("plain"))[0]


@pytest.mark.parametrize(
    "options",
    [
        {"train_dataset": Tokens(64, 1)},
        # It has no loss function that shows the rows' losses.
        pytest.param({"model": "bert-tokens"}, marks=pytest.mark.full),
        pytest.param({"auto_find_batch_size": True}, marks=pytest.mark.full),
    ],
    ids=["one", "bert", "repeatable"],
)
def test_a_plain_step_and_a_log_entry_wait_once_less_than_the_trainers(tmp_path: Path, options: dict[str, Any]) -> None:
    of_both = {name: value for name, value in options.items() if name != "train_dataset"}
    steps, with_log = _waits_of_the_trainer(tmp_path / "plain", **of_both)
    own = _waits_of_ours(tmp_path / "own", mixing=Uniform(), **options)
    # One wait for losses and gradient, in place of the filter's two.
    assert own[0] == [count - 1 for count in steps]
    assert own[1] <= with_log - 1


def test_a_step_waits_once_for_its_gradient_if_the_trainer_filters_no_losses(tmp_path: Path) -> None:
    steps, _ = _waits_of_the_trainer(tmp_path / "plain", logging_nan_inf_filter=False)
    own = _waits_of_ours(tmp_path / "own", mixing=Uniform(), logging_nan_inf_filter=False)
    assert own[0] == [count + 1 for count in steps]


@pytest.mark.parametrize(
    "mixing", [LossChange(), pytest.param(PiKE(interval_steps=1), marks=pytest.mark.full)], ids=["losses", "gradients"]
)
def test_a_decision_waits_no_more_than_a_step_of_the_trainer(tmp_path: Path, plain: list[int], mixing: Any) -> None:
    assert all(one <= other for one, other in zip(_waits_of_ours(tmp_path, mixing=mixing)[0], plain, strict=True))


def test_targets_are_read_from_the_device_a_few_times_in_a_measured_step_and_never_in_others(tmp_path: Path) -> None:
    plain, _ = _waits_of_ours(tmp_path / "plain", mixing=Uniform())
    targets = {"objective": ["t", "u"], "eval_dataset": {name: Tokens(64, seed) for seed, name in enumerate("tu")}}
    with StandIn() as stand_in:
        trainer = make(
            tmp_path, **{**_OPTIONS, **_ON_DEVICE, **targets, "mixing": Safeguard(MarginalValue(interval_steps=4))}
        )
        totals = [Counter[str]()]
        trainer.add_callback(On(step_end=lambda *_, **__: totals.append(stand_in.waits.copy())))
        trainer.train()
    third, fourth = totals[3] - totals[2], totals[4] - totals[3]
    assert third.total() == plain[0]
    more = fourth - third
    # The gradient with the losses; the rows moved along it; the rows that are the same each time.
    assert more.pop("_to_copy from") == 3
    assert set(more) <= {"_local_scalar_dense"}  # transformers reads the mask in each forward


def test_several_forwards_wait_no_more_than_as_many_of_the_trainers(tmp_path: Path) -> None:
    streams = [Stream(name, rows, loss_weight=2.0) for name, rows in three_streams().items()]
    own = _waits_of_ours(tmp_path / "own", mixing=Uniform(), train_dataset=streams)[0]
    plain = _waits_of_the_trainer(tmp_path / "plain", gradient_accumulation_steps=3)[0]
    assert all(one <= other for one, other in zip(own, plain, strict=True))


def test_batches_are_pinned_and_copied_without_waiting(tmp_path: Path, plain: list[int]) -> None:
    pins = {"dataloader_pin_memory": True, "accelerator_config": {"non_blocking": True}}
    with StandIn() as stand_in:
        trainer = make(tmp_path, **{**_OPTIONS, **_ON_DEVICE, **pins, "mixing": Uniform()})
        steps, _ = _waits(trainer, stand_in)
    num_inputs = len(trainer.streams[0].dataset[0])
    assert steps == [count - 1 - num_inputs for count in plain]
    assert stand_in.num_pinned >= num_inputs * _OPTIONS["max_steps"]
