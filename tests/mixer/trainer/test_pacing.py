"""A trainer whose batch size changes: what is trained, when, and with which learning rate."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, StepLR
from transformers import Trainer, TrainerCallback

from mixer import Budget, MixingTrainer, schedules
from mixer.utils.errors import ErrorFacts
from tests.helpers import On, Tokens, arguments, build_model
from tests.mixer.checkpoint.test_resume import FULL
from tests.mixer.trainer import runs
from tests.refusals import refused

# Every lr_scheduler_type that goes by steps, with its arguments and its warm-up, in steps or as a share.
BY_STEPS: list[Any] = [
    *((kind, {}, 3) for kind in ("cosine", "inverse_sqrt")),
    *(pytest.param(kind, {}, 3, marks=FULL) for kind in ("linear", "polynomial", "constant", "constant_with_warmup")),
    ("cosine_warmup_with_min_lr", {"min_lr_rate": 0.1}, 3),
    pytest.param("cosine_with_min_lr", {"min_lr_rate": 0.1}, 3, marks=FULL),
    pytest.param("cosine_with_restarts", {"num_cycles": 2}, 3, marks=FULL),
    ("warmup_stable_decay", {"num_decay_steps": 4}, 3),
    *(("linear", {}, warmup) for warmup in (0, 0.25)),
]


class Rates(TrainerCallback):
    def __init__(self) -> None:
        self.rates: list[float] = []
        self.events: list[tuple[str, int]] = []
        for event in ("epoch_end", "evaluate", "save"):
            setattr(self, f"on_{event}", lambda _, state, *__, name=event, **___: self.note(name, state))

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])

    def note(self, name: str, state: Any) -> None:
        self.events.append((name, state.global_step))

    def of(self, event: str) -> list[int]:
        return [step for name, step in self.events if name == event]


def doubling(step: int, batch_size: int) -> int:
    return 4 * 2 ** (step // 3)


def make(folder: Path, batch_size: Any, dataset: Any = None, **changes: Any) -> MixingTrainer:
    data = Tokens(40, 1) if dataset is None else dataset
    options = {"max_steps": -1, "per_device_train_batch_size": 4, "eval_dataset": Tokens(4, 9), **changes}
    return runs.make(folder, train_dataset=data, batch_size=batch_size, **options)


def train(folder: Path, batch_size: Any, dataset: Any = None, **changes: Any) -> tuple[MixingTrainer, Rates]:
    rates = Rates()
    trainer = make(folder, batch_size, dataset, callbacks=[rates], **changes)
    trainer.train()
    return trainer, rates


def column(trainer: MixingTrainer, name: str) -> list[Any]:
    return trainer.ledger.clock()[name].tolist()


class TestLearningRate:
    @pytest.mark.parametrize(("kind", "options", "warmup"), BY_STEPS)
    def test_it_is_the_trainers_and_goes_by_data_where_the_size_grows(self, tmp_path, kind, options, warmup) -> None:
        changes = {"lr_scheduler_type": kind, "lr_scheduler_kwargs": options, "warmup_steps": warmup}
        stock = Rates()
        args = arguments(tmp_path / "stock", max_steps=12, per_device_train_batch_size=4, **changes)
        Trainer(build_model("llama"), args, train_dataset=Tokens(40, 1), callbacks=[stock]).train()
        small, rates = train(tmp_path / "small", lambda step, size: 4, budget=Budget(samples=48), **changes)
        assert small.mixing.clock.num_samples == 48
        assert rates.rates == pytest.approx(stock.rates, rel=1e-9, abs=1e-12)
        if warmup < 1:
            by_samples = dict(zip([0, *column(small, "samples")], rates.rates, strict=False))
            grown, ours = train(tmp_path / "grown", doubling, budget=Budget(samples=48), **changes)
            before = [0, *column(grown, "samples")][:-1]
            assert ours.rates == pytest.approx([by_samples[samples] for samples in before], rel=1e-9, abs=1e-12)
            assert len(ours.rates) < len(rates.rates)

    @pytest.mark.parametrize(("rule", "power"), [("none", 0.0), ("linear", 1.0), ("sqrt", 0.5)])
    def test_it_follows_the_size(self, tmp_path: Path, rule: Any, power: float) -> None:
        schedule = schedules.Function(doubling, learning_rate=rule)
        trainer, rates = train(tmp_path, schedule, num_train_epochs=3, lr_scheduler_type="cosine")
        before = [0, *column(trainer, "samples")][:-1]
        own = [0.05 * (1 + math.cos(math.pi * samples / 120)) for samples in before]
        factors = [(doubling(step, 0) / 4) ** power for step in range(len(before))]
        assert rates.rates == pytest.approx([a * b for a, b in zip(own, factors, strict=True)], abs=1e-12)
        assert column(trainer, "learning_rate") == rates.rates
        assert column(trainer, "learning_rate_factor") == pytest.approx(factors)
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert [entry["learning_rate"] for entry in logs] == rates.rates
        assert [entry.get("learning_rate_factor", 1.0) for entry in logs] == pytest.approx(factors)

    def test_a_table_of_whole_steps_is_looked_up_and_a_schedule_that_can_only_step_is_refused(self, tmp_path) -> None:
        def stepping(kind: Any, *by: Any, **options: Any) -> MixingTrainer:
            model = build_model("llama")
            optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
            return make(tmp_path, model=model, optimizers=(optimizer, kind(optimizer, *by)), **options)

        table = [1.0, 0.5, 0.25, 0.125, 0.0625, 0.0]  # the Trainer steps once more at the end
        options = {"num_train_epochs": 1, "per_device_train_batch_size": 8}
        sizes = [8, 4, 4, 12, 12]
        trainer = stepping(LambdaLR, lambda step: table[step], batch_size=lambda step, size: sizes[step], **options)
        trainer.train()
        assert column(trainer, "learning_rate") == [1.0, 0.5, 0.5, 0.25, 0.125]
        with refused("optimizers"):
            stepping(StepLR, 5, batch_size=doubling)


class TestLoop:
    def test_epochs_end_with_their_samples(self, tmp_path: Path) -> None:
        options = {"num_train_epochs": 3, "eval_strategy": "epoch", "save_strategy": "epoch"}
        trainer, rates = train(tmp_path, lambda step, size: 4 + step, **options)
        clock = trainer.ledger.clock()
        ends = clock[clock["samples"] % 40 == 0]
        assert ends["samples"].tolist() == [40, 80, 120]
        steps = ends["step"].tolist()
        assert rates.of("epoch_end") == rates.of("evaluate") == rates.of("save") == steps
        assert trainer.state.epoch == 3.0
        assert trainer.state.global_step == trainer.state.max_steps == steps[-1]
        assert trainer.mixing.seen.tolist() == [120]
        final = trainer.state.log_history[-1]
        assert final["train_samples_per_second"] == pytest.approx(120 / final["train_runtime"], rel=0.05)

    def test_a_share_of_the_run_is_one_of_its_data(self, tmp_path: Path) -> None:
        options: dict[str, Any] = {f"{kind}_strategy": "steps" for kind in ("logging", "eval", "save")}
        options |= {f"{kind}_steps": 0.25 for kind in ("logging", "eval", "save")}
        trainer, rates = train(tmp_path, doubling, budget=Budget(samples=240), **options)
        clock = trainer.ledger.clock()
        wanted = [int((clock["progress"] >= share - 1e-9).idxmax()) + 1 for share in (0.25, 0.5, 0.75, 1.0)]
        logged = [entry["step"] for entry in trainer.state.log_history if "loss" in entry]
        assert logged == rates.of("evaluate") == rates.of("save") == sorted(set(wanted))

    def test_max_steps_ends_any_budget_and_tokens_end_a_run(self, tmp_path: Path) -> None:
        trainer, _ = train(tmp_path, doubling, max_steps=5, budget=Budget(epochs=30, samples=10**6))
        assert trainer.state.global_step == 5
        trainer, _ = train(tmp_path, doubling, budget=Budget(tokens=500))
        tokens = column(trainer, "tokens")
        assert tokens[-2] < 500 <= tokens[-1]

    @pytest.mark.parametrize(
        "schedule", [schedules.LossChange(interval=1, growth=1.5, maximum=16), schedules.AdaBatch(every=1, factor=1.5)]
    )
    def test_a_size_by_epochs_is_decided_before_the_rest_is_dropped(self, tmp_path: Path, schedule: Any) -> None:
        """Of 10 samples 2, 4 and 1 are left over by batches of 4, 6 and 9: each epoch has one size."""
        trainer, _ = train(tmp_path, schedule, Tokens(10, 1), num_train_epochs=3, dataloader_drop_last=True)
        assert column(trainer, "total") == [4, 4, 6, 9]


class TestByHand:
    @pytest.mark.parametrize(
        ("own", "sizes", "changes", "totals"),
        [
            (None, {2: 10, 4: None}, {}, [4, 4, 10, 10, 4, 4, 4]),
            (lambda step, size: 5, {2: 10, 4: None}, {}, [5, 5, 10, 10, 5, 5]),
            (None, {2: 1}, {}, [4, 4, 1, 1]),  # smaller than the loop was laid out for
            (None, {8: 9}, {"dataloader_drop_last": True}, [4] * 8 + [9] * 4),  # a rest that became too small
        ],
    )
    def test_it_rules_the_next_step(self, tmp_path, own, sizes, changes, totals) -> None:
        def set_size(state: Any, **_: Any) -> None:
            if state.global_step in sizes:
                trainer.mixing.set_batch_size(sizes[state.global_step])

        trainer = make(tmp_path, own, callbacks=[On(step_end=set_size)], num_train_epochs=2, **changes)
        trainer.train()
        found = column(trainer, "total")
        assert found[: len(totals)] == totals
        assert sum(found) == (68 if changes else 80)
        assert trainer.state.epoch == 2.0


class _Clairvoyant(schedules.Constant):
    is_constant = False
    needs = ("future",)


@pytest.mark.parametrize(
    ("batch_size", "changes", "option"),
    [
        (lambda step, size: 4 * (step < 2), {}, "batch_size"),
        (_Clairvoyant(4), {}, "needs"),
        (None, {"budget": 100}, "budget"),
    ],
)
def test_wrong_sizes_and_budgets_are_refused(tmp_path: Path, batch_size: Any, changes: Any, option: str) -> None:
    with refused(option, ErrorFacts):
        train(tmp_path, batch_size, **changes)
