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
from mixer.trainer.evaluation import StreamEvaluation
from mixer.trainer.loading import LoadingRules
from mixer.trainer.loop import LoopControl
from mixer.trainer.losses import StreamLosses
from mixer.trainer.micro_batch import MicroBatchTraining
from mixer.trainer.run import PresentStep, StepNeeds
from mixer.trainer.search import Search
from mixer.utils.attributes import MethodReplaced

STREAMS = [Stream("math", [{"labels": 0}] * 8), Stream("code", [{"labels": 0}] * 8)]
PLAN: Any = SimpleNamespace(counts=np.array([2, 4]), loss_weights=None, step=1)


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


def losses_of(trainer: Any, step: PresentStep, known: LossNormalization) -> StreamLosses:
    losses = StreamLosses(trainer, STREAMS, step, StepNeeds())
    losses.normalizations[0] = known
    losses._shifts_labels = False
    losses._reader = SimpleNamespace(listen=lambda inputs: None, row_losses=lambda: None)  # type: ignore[assignment]
    return losses


MEAN = LossNormalization(False, factor=1.0, rows_known=False)
SUM = LossNormalization(False, factor=1.0, rows_known=False, kind="sum")


ROWS = torch.randn(6, 3, generator=torch.Generator().manual_seed(0))


def sums_of_three_micro_batches(trainer: Any, known: LossNormalization, training_step: Any) -> torch.Tensor:
    """Trains `ROWS` in three micro-batches of two streams."""
    step = PresentStep(PLAN, StepCounts(np.array([2, 4]), np.array([2, 4])), [1, 2, 3])
    run: Any = SimpleNamespace(step=step, present_loader=SimpleNamespace(in_turns=False))
    part = MicroBatchTraining(trainer, run, losses_of(trainer, step, known))
    part.begin(training_step)
    sums, ids = torch.zeros(3, dtype=torch.float64), (0, 0, 0, 1, 1, 1)
    for start, stop in ((0, 1), (1, 3), (3, 6)):
        inputs = {"x": ROWS[start:stop], "labels": torch.ones(stop - start)}
        micro = MicroBatch(inputs, np.array(ids[start:stop]), is_padding=False)
        part.train(trainer.model, micro, torch.tensor(6), stop - start, 1.0, None, sums)
    return sums


def assert_gradient(trainer: Any, reduce: Callable[..., torch.Tensor]) -> None:
    """The gradient is that of all rows at once."""
    twin = nn.Linear(3, 1, bias=False)
    twin.load_state_dict(trainer.model.state_dict())
    reduce(twin(ROWS) ** 2).backward()
    torch.testing.assert_close(trainer.model.weight.grad, twin.weight.grad)


@pytest.mark.parametrize("reduce", [torch.mean, torch.sum])
def test_gradients_of_micro_batches_add_up_to_that_of_the_step(reduce: Callable[..., torch.Tensor]) -> None:
    trainer = host()

    def training_step(model: nn.Module, inputs: Any, num_items: Any) -> torch.Tensor:
        loss = reduce(model(inputs["x"]) ** 2)
        trainer.accelerator.backward(loss)
        return loss.detach()

    sums = sums_of_three_micro_batches(trainer, SUM if reduce is torch.sum else MEAN, training_step)
    assert_gradient(trainer, reduce)
    expected = (trainer.model(ROWS).detach() ** 2).mean().item()
    assert sums[-1].item() == pytest.approx(expected)  # a mean, also for a sum


def test_a_backward_of_its_own_is_found() -> None:
    trainer, step = host(), PresentStep(PLAN, StepCounts(np.array([1, 0]), np.array([1, 0])), [1])
    run: Any = SimpleNamespace(step=step, present_loader=SimpleNamespace(in_turns=False))
    part = MicroBatchTraining(trainer, run, losses_of(trainer, step, MEAN))

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


def test_an_epoch_ends_with_the_clocks() -> None:
    trainer = host()
    loop = loop_of(trainer, lambda own: own)
    loop._run.mixing.clock.at_epoch_end = True
    loop.after_step(lambda: None, None, None)
    assert trainer.control.should_epoch_stop
    loop.take_stop_back()
    assert not trainer.control.should_epoch_stop


def test_a_set_belongs_to_the_stream_of_its_name() -> None:
    seen: list[Any] = []
    own = Stream("math", [{"labels": 0}], compute_loss_func=max)
    trainer: Any = host(eval_dataset={"math": [1], "code": [2]})
    trainer.model, trainer.is_in_train = None, False
    evaluation = StreamEvaluation(trainer)
    evaluation._streams = [own, STREAMS[1]]
    for name in ("math", "code"):
        evaluation.evaluate(
            lambda **_: seen.append(trainer.compute_loss_func) or {},
            [1],
            None,
            f"eval_{name}",
            {},  # type: ignore[func-returns-value]
        )
    assert seen == [max, None]
    assert trainer.compute_loss_func is None


def test_a_search_that_needs_an_objective_says_so() -> None:
    nothing: Any = None
    trainer = host(eval_dataset={"math": [1]}, compute_metrics=max)
    with pytest.raises(ValueError, match="compute_objective is missing"):
        Search(trainer, nothing, nothing, lambda: None).run(lambda *_: None, None, None)


def test_rules_of_loading_follow_the_arguments() -> None:
    trainer = host(_train_batch_size=7)
    trainer.args.remove_unused_columns = False
    rules = LoadingRules(trainer)
    assert (rules.most_samples, rules.removes_columns) == (7, False)
    assert rules.smaller_cap("32").format(3) == "per_device_train_batch_size=3, with batch_size=32 to keep the total"


def test_a_replaced_method_comes_back() -> None:
    class Owner:
        def name(self) -> str:
            return "class"

    owner = Owner()
    with MethodReplaced(owner, "name", lambda: "outer"):
        with MethodReplaced(owner, "name", lambda: "inner"):
            assert owner.name() == "inner"
        assert owner.name() == "outer"
    assert owner.name() == "class"
    assert not vars(owner)


def test_only_the_seam_reads_what_is_private_to_others() -> None:
    room = Path(__file__).parents[3] / "mixer" / "trainer"
    told = [path.name for path in room.rglob("*.py") for line in path.read_text().splitlines() if "SLF001" in line]
    assert sorted(told) == ["failures.py", "seam.py", "step.py"]  # of torch, of the Trainer, of accelerate


@pytest.mark.parametrize("asks", ["with the number", "without it", "the model alone"])
def test_a_users_step_may_leave_out_the_number_of_items(asks: str) -> None:
    """As the Trainer's models compute a sum over the number of items, or a mean if they are not told it."""
    trainer = host()
    counts = LossNormalization(True, factor=1.0, rows_known=False, kind="sum")

    def compute_loss(model: nn.Module, inputs: Any, num_items_in_batch: Any = None) -> torch.Tensor:
        terms = model(inputs["x"]) ** 2
        return terms.mean() if num_items_in_batch is None else terms.sum() / num_items_in_batch

    def training_step(model: nn.Module, inputs: Any, num_items: Any) -> torch.Tensor:
        number = {"num_items_in_batch": num_items} if asks == "with the number" else {}
        loss = (compute_loss if asks == "the model alone" else trainer.compute_loss)(model, inputs, **number)
        trainer.accelerator.backward(loss)
        return loss

    trainer.compute_loss = compute_loss
    sums_of_three_micro_batches(trainer, counts, training_step)
    assert_gradient(trainer, torch.mean)
    assert trainer.compute_loss is compute_loss
