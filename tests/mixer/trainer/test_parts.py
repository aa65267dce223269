"""The parts of a trainer, each built without a Trainer."""

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from transformers import TrainerControl, TrainerState

from mixer import Stream
from mixer.loading.step import MicroBatch, StepCounts
from mixer.models.loss_normalization import LossNormalization
from mixer.trainer.checkpointing.save import Checkpointing, HeldArguments
from mixer.trainer.loop import LoopControl
from mixer.trainer.losses import StreamLosses
from mixer.trainer.micro_batch import MicroBatchTraining
from mixer.trainer.run import PresentStep, StepNeeds
from mixer.trainer.search import Search

STREAMS = [Stream("math", [{"labels": 0}] * 8), Stream("code", [{"labels": 0}] * 8)]


def host(**changes: Any) -> Any:
    """What parts read of a Trainer."""
    args = SimpleNamespace(
        device=torch.device("cpu"),
        world_size=1,
        label_smoothing_factor=0.0,
        accelerator_config=SimpleNamespace(non_blocking=False),
        save_strategy="steps",
        save_steps=5,
    )
    accelerator = SimpleNamespace(
        backward=lambda loss: loss.backward(), unwrap_model=lambda model, keep_torch_compile: model
    )
    model = nn.Linear(3, 1, bias=False)
    state, control = TrainerState(), TrainerControl()
    own = {"args": args, "accelerator": accelerator, "model": model, "model_wrapped": model, "state": state}
    return SimpleNamespace(**{**own, "control": control, "compute_loss_func": None, "eval_dataset": None, **changes})


ROWS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))
PLAN: Any = SimpleNamespace(counts=np.array([2, 4]), loss_weights=None, step=1)


def micro_batches_of(trainer: Any, known: LossNormalization, num_micros: int) -> MicroBatchTraining:
    step = PresentStep(PLAN, StepCounts(np.array([2, 4]), np.array([2, 4])), list(range(num_micros)))
    run: Any = SimpleNamespace(step=step, present_loader=SimpleNamespace(in_turns=False))
    losses = StreamLosses(trainer, STREAMS, step, StepNeeds())
    losses.normalizations[0] = known
    losses._shifts_labels = False
    losses._reader = SimpleNamespace(listen=lambda inputs: None, row_losses=lambda: None)  # type: ignore[assignment]
    return MicroBatchTraining(trainer, run, losses)


@pytest.mark.parametrize("asks", ["a mean", "a sum", "with the number", "without it", "the model alone"])
def test_gradients_of_micro_batches_add_up_to_that_of_the_step(asks: str) -> None:
    """Also where a user's step leaves out the number of items, which the Trainer's models divide a sum by."""
    trainer = host()

    def compute_loss(model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        terms = model(inputs["x"]) ** 2
        if asks == "a sum":
            return terms.sum()
        return terms.mean() if num_items_in_batch is None else terms.sum() / num_items_in_batch

    def training_step(model: nn.Module, inputs: Any, num_items: Any) -> torch.Tensor:
        number = {"num_items_in_batch": num_items} if asks == "with the number" else {}
        loss = (trainer.compute_loss if asks.startswith("with") else compute_loss)(model, inputs, **number)
        trainer.accelerator.backward(loss)
        return loss.detach()

    trainer.compute_loss = compute_loss
    kind = {} if asks == "a mean" else {"kind": "sum"}
    known = LossNormalization(not asks.startswith("a "), factor=1.0, rows_known=False, **kind)
    part = micro_batches_of(trainer, known, 3)
    part.begin(training_step)
    sums, ids = torch.zeros(3, dtype=torch.float64), (0, 0, 0, 1, 1, 1)
    for start, stop in ((0, 1), (1, 3), (3, 6)):
        inputs = {"x": ROWS[start:stop], "labels": torch.ones(stop - start)}
        micro = MicroBatch(inputs, np.array(ids[start:stop]), is_padding=False)
        part.train(trainer.model, micro, torch.tensor(6), stop - start, 1.0, None, sums)
    twin = nn.Linear(3, 1, bias=False)
    twin.load_state_dict(trainer.model.state_dict())
    terms = twin(ROWS) ** 2
    (terms.sum() if asks == "a sum" else terms.mean()).backward()
    torch.testing.assert_close(trainer.model.weight.grad, twin.weight.grad)
    assert trainer.compute_loss is compute_loss
    if asks.startswith("a "):
        assert sums[-1].item() == pytest.approx(terms.mean().item())  # a mean, also for a sum


def test_a_backward_of_its_own_is_found() -> None:
    trainer = host()
    part = micro_batches_of(trainer, LossNormalization(False, factor=1.0, rows_known=False), 1)

    def training_step(model: nn.Module, inputs: Any, num_items: Any) -> torch.Tensor:
        loss = model(inputs["x"]).mean()
        loss.backward()
        return loss.detach()

    part.begin(training_step)
    micro = MicroBatch({"x": torch.ones(1, 3)}, np.array([0]), False)
    part.train(trainer.model, micro, None, 1, 1.0, None, torch.zeros(3))
    with pytest.raises(TypeError, match=r"without self\.accelerator\.backward"):
        part.check_backward(trainer.model)


def test_the_user_sees_own_arguments_while_others_are_held() -> None:
    trainer = host()
    arguments = HeldArguments(trainer)
    with arguments.held(save_steps=1), arguments.held(save_steps=2):
        assert trainer.args.save_steps == 2
        with arguments.as_the_user_set_them():
            assert trainer.args.save_steps == 5
    assert trainer.args.save_steps == 5


def loop_of(trainer: Any, most: Callable[[np.ndarray], np.ndarray]) -> LoopControl:
    run: Any = SimpleNamespace(
        mixing=SimpleNamespace(clock=SimpleNamespace(at_epoch_end=False)),
        rank_sync=SimpleNamespace(greatest=most, most=lambda number: 1),
        step=PresentStep(),
    )
    trainer.callback_handler = SimpleNamespace(callbacks=[])
    arguments = HeldArguments(trainer)
    methods: Any = ()
    return LoopControl(trainer, run, Checkpointing(trainer, run, methods, arguments), arguments, False)


def test_a_request_of_another_rank_is_this_ranks_too() -> None:
    trainer = host()
    loop = loop_of(trainer, lambda own: np.maximum(own, [0, 0, 1, 0, 0]))
    loop.begin()
    acted: list[bool] = []
    loop.after_step(lambda: acted.append(trainer.control.should_save), None, None)
    assert acted == [True]
    assert not trainer.control.should_training_stop


def test_a_search_that_needs_an_objective_says_so() -> None:
    nothing: Any = None
    trainer = host(eval_dataset={"math": [1]}, compute_metrics=max)
    with pytest.raises(ValueError, match="compute_objective is missing"):
        Search(trainer, nothing, nothing, lambda: None).run(lambda *_: None, None, None)


def test_only_the_seam_reads_what_is_private_to_others() -> None:
    room = Path(__file__).parents[3] / "mixer" / "trainer"
    told = [path.name for path in room.rglob("*.py") for line in path.read_text().splitlines() if "SLF001" in line]
    assert sorted(told) == ["failures.py", "seam.py", "step.py"]  # of torch, of the Trainer, of accelerate
