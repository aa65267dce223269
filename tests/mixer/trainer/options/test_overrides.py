"""What a user's subclass overrides: that it is called as in the Trainer, and sees what it sees there."""

import functools
import inspect
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer

from mixer import MixingMixin, MixingTrainer
from mixer.utils.errors import InvalidTypeError
from tests.helpers import On, Tokens, arguments, build_model, weights_of
from tests.mixer.trainer.runs import make, train
from tests.refusals import refused

# What counts the items of a step is not the Trainer's here.
NEVER_CALLED = ("_get_num_items_in_batch",)
# Calls that are as many: the loss is asked for thrice more, to find out how it is normalised.
AS_OFTEN = (
    *("training_step", "get_batch_samples", "log", "evaluate", "evaluation_loop", "prediction_step", "save_model"),
    *("create_optimizer", "create_scheduler", "floating_point_ops", "_save_checkpoint", "get_eval_dataloader"),
    *("get_train_dataloader", "_maybe_log_save_evaluate", "num_examples", "_determine_best_metric"),
)


def overriding(base: type[Trainer], calls: Counter[str]) -> type[Trainer]:
    def noting(name: str) -> Any:
        @functools.wraps(getattr(Trainer, name))
        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            calls[name] += 1
            return getattr(super(mine, self), name)(*args, **kwargs)

        return method

    own = [name for name, value in vars(Trainer).items() if inspect.isfunction(value) and not name.startswith("__")]
    refused = {"create_optimizer_and_scheduler", *(NEVER_CALLED if issubclass(base, MixingMixin) else ())}
    own = [name for name in own if name not in refused]
    mine: Any = type("Mine", (base,), {name: noting(name) for name in own})
    return mine


def calls_of(base: type[Trainer], folder: Path) -> Counter[str]:
    found: Counter[str] = Counter()
    changes = {"save_strategy": "steps", "eval_strategy": "steps", "eval_steps": 2, "save_steps": 2}
    args = arguments(folder, **changes, max_steps=4, load_best_model_at_end=True, max_grad_norm=1.0)
    data = {"train_dataset": Tokens(40, 1), "eval_dataset": Tokens(8, 2)}
    trainer = overriding(base, found)(build_model("llama"), args, **data)
    trainer.train()
    trainer.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    trainer.predict(Tokens(8, 3))
    trainer.save_state()
    return found


def made(folder: Path, kind: Any = MixingTrainer, callbacks: Any = None, **changes: Any) -> Any:
    return make(folder, kind=kind, callbacks=callbacks, **changes)


def test_what_the_trainer_calls_is_called(tmp_path: Path) -> None:
    stock, ours = (calls_of(base, tmp_path / base.__name__) for base in (Trainer, MixingTrainer))
    assert set(stock) - set(ours) <= set(NEVER_CALLED)
    assert [(name, ours[name]) for name in AS_OFTEN] == [(name, stock[name]) for name in AS_OFTEN]
    assert all(stock[name] > 0 for name in AS_OFTEN)


class TestTrainingStep:
    def test_a_backward_of_its_own_is_refused(self, tmp_path: Path) -> None:
        class Mine(MixingTrainer):
            def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Any:
                loss = self.compute_loss(model, self._prepare_inputs(inputs))
                loss.backward()
                return loss.detach()

        with refused("training_step", InvalidTypeError):
            made(tmp_path, Mine).train()

    def test_one_that_is_replaced_in_the_run_is_refused(self, tmp_path: Path) -> None:
        replaced = On(step_begin=lambda *_, **__: setattr(trainer, "training_step", lambda *_: torch.zeros(())))
        trainer = made(tmp_path, callbacks=[replaced])
        with refused("training_step", InvalidTypeError):
            trainer.train()


class TestLog:
    @pytest.mark.parametrize("is_above", [True, False])
    def test_one_without_a_start_time_is_called(self, tmp_path: Path, is_above: bool) -> None:
        seen: list[dict[str, float]] = []

        def log(self: Any, logs: dict[str, float]) -> None:
            seen.append(logs)
            super(kind if is_above else below, self).log(logs)

        below: Any = type("Below", (Trainer,), {} if is_above else {"log": log})
        kind: Any = type("Mine", (MixingMixin, below), {})
        kind = type("Mine", (kind,), {"log": log}) if is_above else kind
        trainer = made(tmp_path, kind)
        trainer.train()
        assert len(seen) == len(trainer.state.log_history) > 3
        assert seen[0]["loss/a"] > 0


class TestLoader:
    def test_a_look_at_it_changes_no_run(self, tmp_path: Path) -> None:
        def look(*args: Any, **kwargs: Any) -> None:
            assert next(iter(trainer.get_train_dataloader()))["input_ids"].ndim == 2

        ends = []
        data = {"a": Tokens(20, 1), "b": Tokens(11, 2)}
        for when in ("push_begin", "train_begin", "step_end", "epoch_end"):  # never, and at three events
            options = {"callbacks": [On(**{when: look})], "max_steps": -1, "num_train_epochs": 2}
            trainer = train(tmp_path / when, train_dataset=data, mixing="LossChange", **options)
            ends.append((weights_of(trainer.model), trainer.ledger.to_pandas()))
            assert torch.equal(ends[-1][0], ends[0][0])
            assert ends[-1][1].equals(ends[0][1])

    def test_it_gives_batches_of_an_epoch(self, tmp_path: Path) -> None:
        trainer = made(tmp_path, per_device_train_batch_size=2, batch_size=5)
        before, loader = trainer.mixing.state_dict(), trainer.get_train_dataloader()
        assert (loader.total_batch_size, len(next(iter(loader))["input_ids"]), len(loader)) == (5, 5, 8)
        batches = [list(trainer.get_train_dataloader()) for _ in range(2)]
        assert trainer.mixing.state_dict() == before
        trainer.train()
        batches.append(list(trainer.get_train_dataloader()))
        assert [sum(len(batch["input_ids"]) for batch in epoch) for epoch in batches] == [37, 37, 37]
        assert torch.equal(batches[0][0]["input_ids"], batches[1][0]["input_ids"])

    def test_it_says_what_others_ask_of_a_loader(self, tmp_path: Path) -> None:
        trainer = made(tmp_path, per_device_train_batch_size=2, batch_size=5)
        loader = trainer.get_train_dataloader()
        rows = [loader.dataset[index]["input_ids"] for index in loader.sampler]
        assert (loader.batch_size, len(loader.sampler), sorted(loader.sampler)) == (5, 37, list(range(37)))
        assert torch.equal(torch.stack(rows), torch.cat([batch["input_ids"] for batch in loader]))
        trainer.train()
        assert len(trainer.callback_handler.train_dataloader.sampler) == 37
        stock = Trainer(build_model("llama"), trainer.args, train_dataset=Tokens(37, 1)).get_train_dataloader()
        assert (len(stock.sampler), len(stock.dataset)) == (len(loader.sampler), len(loader.dataset))


REPLACED = (
    *("get_train_dataloader", "get_batch_samples", "_inner_training_loop"),
    *("set_initial_training_values", "get_total_train_batch_size"),
)
EXTENDED = ("train", "_init_training_state", "_run_epoch", "_maybe_log_save_evaluate", "_finalize_training")


def bypassing(base: type[Trainer], name: str) -> Any:
    """A class that overrides a method as in the Trainer's code, without its parent's."""
    return type("Bypassing", (base,), {name: lambda self, *args, **kwargs: None})


class TestBypassing:
    @pytest.mark.parametrize("name", [*NEVER_CALLED, *REPLACED, *EXTENDED])
    def test_above_it_what_bypasses_it_is_refused(self, tmp_path: Path, name: str) -> None:
        kind: Any = type("Mine", (bypassing(MixingTrainer, name),), {})
        with refused(name, InvalidTypeError):
            made(tmp_path, kind)

    def test_another_loader_is_refused(self, tmp_path: Path) -> None:
        class Mine(MixingTrainer):
            def get_train_dataloader(self) -> Any:
                return torch.utils.data.DataLoader(super().get_train_dataloader().dataset, 4)

        with refused("get_train_dataloader", InvalidTypeError):
            made(tmp_path, Mine).train()

    @pytest.mark.parametrize("by_name", [True, False])
    def test_another_batch_is_refused(self, tmp_path: Path, by_name: bool) -> None:
        class Mine(MixingTrainer):
            def get_batch_samples(self, *args: Any) -> Any:
                if by_name:
                    return Trainer.get_batch_samples(self, *args)
                [step], num_items = super().get_batch_samples(*args)
                return [step.micro_batches[0].inputs], num_items

        with refused("get_batch_samples" if by_name else "training_step", InvalidTypeError):
            made(tmp_path, Mine).train()


class Theirs(Trainer):  # type: ignore[misc]
    def create_optimizer_and_scheduler(self, num_training_steps: int) -> None:
        raise AssertionError


@pytest.mark.parametrize("base", [Theirs, MixingTrainer])
def test_an_optimizer_that_would_not_be_used_is_refused(tmp_path: Path, base: Any) -> None:
    own = {"create_optimizer_and_scheduler": Theirs.create_optimizer_and_scheduler}
    kind: Any = type("Mine", (MixingMixin, base), {}) if base is Theirs else type("Mine", (base,), own)
    with refused("create_optimizer_and_scheduler", InvalidTypeError):
        made(tmp_path, kind)
