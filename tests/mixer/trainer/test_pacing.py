"""A trainer whose batch size changes: what is trained, when, and with which learning rate."""

import logging
import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.optim.lr_scheduler import LambdaLR, StepLR
from transformers import Trainer, TrainerCallback
from transformers.trainer_callback import ProgressCallback

from mixer import AdaptiveBatchSizeTrainer, Budget, LossChange, MixingTrainer, schedules
from tests.helpers import Tokens, arguments, build_model, three_streams, weights_of

# Every lr_scheduler_type that goes by steps, with arguments where it needs some.
BY_STEPS: dict[str, dict[str, Any]] = {
    "linear": {},
    "cosine": {},
    "cosine_with_restarts": {"num_cycles": 2},
    "polynomial": {},
    "constant": {},
    "constant_with_warmup": {},
    "inverse_sqrt": {},
    "cosine_with_min_lr": {"min_lr_rate": 0.1},
    "cosine_warmup_with_min_lr": {"min_lr_rate": 0.1},
    "warmup_stable_decay": {"num_decay_steps": 4},
}


class Rates(TrainerCallback):
    """Keeps the learning rate of every optimizer step, and the events."""

    def __init__(self, **actions: Any) -> None:
        self.rates: list[float] = []
        self.events: list[tuple[str, int]] = []
        self.actions = actions

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, optimizer: Any = None, **kwargs: Any) -> None:
        self.rates.append(optimizer.param_groups[0]["lr"])

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> Any:
        for name, steps in self.actions.items():
            if state.global_step in steps:
                setattr(control, name, True)
        return control

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        assert not control.should_epoch_stop
        self.events.append(("epoch", state.global_step))

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append(("evaluate", state.global_step))

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.events.append(("save", state.global_step))

    def of(self, event: str) -> list[int]:
        return [step for name, step in self.events if name == event]


def doubling(step: int, batch_size: int) -> int:
    return 4 * 2 ** (step // 3)


def train(folder: Path, batch_size: Any, dataset: Any = None, **changes: Any) -> tuple[MixingTrainer, Rates]:
    own = {name: changes.pop(name) for name in ("budget", "mixing", "optimizers", "eval_dataset") if name in changes}
    rates = Rates()
    trainer = MixingTrainer(
        build_model("llama"),
        arguments(folder, **{"max_steps": -1, "per_device_train_batch_size": 4, **changes}),
        train_dataset=Tokens(40, 1) if dataset is None else dataset,
        batch_size=batch_size,
        callbacks=[rates],
        **own,
    )
    trainer.train()
    return trainer, rates


class TestLearningRate:
    @pytest.mark.parametrize(("kind", "warmup"), [*product(BY_STEPS, [3]), *product(["linear", "cosine"], [0, 0.25])])
    def test_the_clock_of_data_is_that_of_steps_where_the_size_stays(
        self, tmp_path: Path, kind: str, warmup: float
    ) -> None:
        changes = {"lr_scheduler_type": kind, "lr_scheduler_kwargs": BY_STEPS[kind], "warmup_steps": warmup}
        rates = Rates()
        args = arguments(tmp_path / "stock", max_steps=12, per_device_train_batch_size=4, **changes)
        Trainer(build_model("llama"), args, train_dataset=Tokens(40, 1), callbacks=[rates]).train()
        trainer, ours = train(tmp_path / "ours", lambda step, size: 4, budget=Budget(samples=48), **changes)
        assert trainer.mixing.clock.num_samples == 48
        assert ours.rates == pytest.approx(rates.rates, rel=1e-9, abs=1e-12)

    @pytest.mark.parametrize("kind", BY_STEPS)
    def test_it_depends_on_the_data_and_not_on_the_sizes(self, tmp_path: Path, kind: str) -> None:
        changes = {"lr_scheduler_type": kind, "lr_scheduler_kwargs": BY_STEPS[kind], "budget": Budget(samples=96)}
        small, rates = train(tmp_path / "small", lambda step, size: 4, **changes)
        grown, ours = train(tmp_path / "grown", doubling, **changes)
        by_samples = dict(zip([0, *small.ledger.clock()["samples"]], rates.rates, strict=False))
        before = [0, *grown.ledger.clock()["samples"]][:-1]
        assert ours.rates == pytest.approx([by_samples[samples] for samples in before], rel=1e-9, abs=1e-12)
        assert len(ours.rates) < len(rates.rates)

    def test_a_warm_up_in_steps_lasts_so_many_steps(self, tmp_path: Path) -> None:
        _, rates = train(
            tmp_path, doubling, budget=Budget(samples=200), warmup_steps=5, lr_scheduler_type="constant_with_warmup"
        )
        assert rates.rates == pytest.approx([0, 0.02, 0.04, 0.06, 0.08] + [0.1] * (len(rates.rates) - 5))

    @pytest.mark.parametrize(("rule", "power"), [("none", 0.0), ("linear", 1.0), ("sqrt", 0.5)])
    def test_it_follows_the_size(self, tmp_path: Path, rule: Any, power: float) -> None:
        schedule = schedules.Function(doubling, learning_rate=rule)
        trainer, rates = train(tmp_path, schedule, num_train_epochs=3, lr_scheduler_type="cosine")
        clock = trainer.ledger.clock()
        before = [0, *clock["samples"]][:-1]
        own = [0.05 * (1 + math.cos(math.pi * samples / 120)) for samples in before]
        factors = [(doubling(step, 0) / 4) ** power for step in range(len(before))]
        assert rates.rates == pytest.approx(
            [rate * factor for rate, factor in zip(own, factors, strict=True)], abs=1e-12
        )
        assert clock["learning_rate"].tolist() == rates.rates
        assert clock["learning_rate_factor"].tolist() == pytest.approx(factors)
        logs = [entry for entry in trainer.state.log_history if "loss" in entry]
        assert [entry["learning_rate"] for entry in logs] == rates.rates
        assert [entry.get("learning_rate_factor", 1.0) for entry in logs] == pytest.approx(factors)

    def test_one_that_follows_a_metric_is_scaled_too(self, tmp_path: Path) -> None:
        schedule = schedules.Function(doubling, learning_rate="sqrt")
        _, rates = train(
            tmp_path,
            schedule,
            budget=Budget(steps=8),
            lr_scheduler_type="reduce_lr_on_plateau",
            lr_scheduler_kwargs={"patience": 100},
            eval_strategy="steps",
            eval_steps=1,
            eval_dataset=Tokens(4, 9),
        )
        assert rates.rates == pytest.approx([0.1 * math.sqrt(2 ** (step // 3)) for step in range(8)])

    def test_a_table_of_whole_steps_is_looked_up(self, tmp_path: Path) -> None:
        model = build_model("llama")
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        table = [1.0, 0.5, 0.25, 0.125, 0.0625, 0.0]  # the Trainer steps once more at the end
        trainer = MixingTrainer(
            model,
            arguments(tmp_path, max_steps=-1, num_train_epochs=1, per_device_train_batch_size=8),
            train_dataset=Tokens(40, 1),
            batch_size=lambda step, size: [8, 4, 4, 12, 12][step],
            optimizers=(optimizer, LambdaLR(optimizer, lambda step: table[step])),
        )
        trainer.train()
        assert trainer.ledger.clock()["learning_rate"].tolist() == [1.0, 0.5, 0.5, 0.25, 0.125]

    def test_a_schedule_that_can_only_step_is_refused(self, tmp_path: Path) -> None:
        model = build_model("llama")
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        with pytest.raises(ValueError, match="a StepLR can only step"):
            MixingTrainer(
                model,
                arguments(tmp_path),
                train_dataset=Tokens(40, 1),
                batch_size=doubling,
                optimizers=(optimizer, StepLR(optimizer, 5)),
            )

    def test_without_a_warm_up_the_peak_is_the_first_step(self, tmp_path: Path) -> None:
        _, rates = train(tmp_path, schedules.Seesaw(maximum=16), num_train_epochs=4, lr_scheduler_type="linear")
        assert rates.rates[:5] == pytest.approx([0.1] * 5)

    def test_a_warm_up_longer_than_was_planned_still_decays_to_the_end(self, tmp_path: Path) -> None:
        schedule = schedules.Function(lambda step, size: 2 if step else 20, initial=20)
        _, rates = train(tmp_path, schedule, num_train_epochs=2, warmup_steps=8, lr_scheduler_type="cosine")
        peak = rates.rates.index(max(rates.rates))
        assert peak == 8
        assert rates.rates[peak:] == sorted(rates.rates[peak:], reverse=True)
        assert rates.rates[-1] < 0.001

    def test_a_schedule_that_can_only_step_is_said_to_follow_nothing(
        self, tmp_path: Path, caplog: pytest.LogCaptureFixture
    ) -> None:
        model = build_model("llama")
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        trainer = MixingTrainer(
            model,
            arguments(tmp_path, max_steps=3),
            train_dataset=Tokens(40, 1),
            optimizers=(optimizer, StepLR(optimizer, 5)),
        )

        class Setting(TrainerCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                trainer.mixing.set_batch_size(4)

        trainer.add_callback(Setting())
        logger = logging.getLogger("transformers")
        logger.addHandler(caplog.handler)
        trainer.train()
        logger.removeHandler(caplog.handler)
        assert "A StepLR can only step" in caplog.text

    def test_seesaw_cuts_by_the_root_and_doubles(self, tmp_path: Path) -> None:
        trainer, rates = train(tmp_path, schedules.Seesaw(maximum=16), num_train_epochs=4, lr_scheduler_type="linear")
        sizes = trainer.ledger.clock()["batch_size"].tolist()
        assert sorted(set(sizes)) == [4, 8, 16]
        assert sizes == sorted(sizes)
        assert rates.rates[sizes.index(8)] == pytest.approx(rates.rates[0] / math.sqrt(2))
        # At its maximum the batch grows no more: the learning rate falls as the run's own does.
        factors = trainer.ledger.clock()["learning_rate_factor"]
        assert factors[sizes.index(16) :].tolist() == [2.0] * sizes.count(16)


class TestLoop:
    def test_epochs_end_with_their_samples(self, tmp_path: Path) -> None:
        trainer, rates = train(
            tmp_path,
            lambda step, size: 4 + step,
            num_train_epochs=3,
            eval_strategy="epoch",
            save_strategy="epoch",
            eval_dataset=Tokens(4, 9),
        )
        clock = trainer.ledger.clock()
        ends = [samples for samples in clock["samples"] if samples % 40 == 0]
        assert ends == [40, 80, 120]
        steps = clock["step"][clock["samples"] % 40 == 0].tolist()
        assert rates.of("epoch") == rates.of("evaluate") == rates.of("save") == steps
        assert trainer.state.epoch == 3.0
        assert trainer.state.global_step == trainer.state.max_steps == steps[-1]
        assert trainer.mixing.seen.tolist() == [120]

    @pytest.mark.parametrize("num_workers", [0, 2])
    def test_workers_give_the_same(self, tmp_path: Path, num_workers: int) -> None:
        trainer, _ = train(
            tmp_path,
            lambda step, size: 3 + (5 * step) % 11,
            three_streams(),
            num_train_epochs=2,
            dataloader_num_workers=num_workers,
            mixing=LossChange(num_warmup_observations=1),
        )
        assert trainer.ledger.clock()["total"].tolist()[:4] == [3, 8, 13, 7]
        assert trainer.mixing.clock.num_samples == 74
        alone, _ = train(
            tmp_path / "alone",
            lambda step, size: 3 + (5 * step) % 11,
            three_streams(),
            num_train_epochs=2,
            mixing=LossChange(num_warmup_observations=1),
        )
        assert torch.equal(weights_of(trainer.model), weights_of(alone.model))

    @pytest.mark.parametrize("kind", ["logging", "eval", "save"])
    def test_a_share_of_the_run_is_one_of_its_data(self, tmp_path: Path, kind: str) -> None:
        strategy = {} if kind == "logging" else {f"{kind}_strategy": "steps"}
        trainer, rates = train(
            tmp_path,
            doubling,
            budget=Budget(samples=240),
            eval_dataset=Tokens(4, 9),
            **{f"{kind}_steps": 0.25, **strategy},
        )
        clock = trainer.ledger.clock()
        wanted = [int((clock["progress"] >= share - 1e-9).idxmax()) + 1 for share in (0.25, 0.5, 0.75, 1.0)]
        logged = [entry["step"] for entry in trainer.state.log_history if "loss" in entry]
        found = {"logging": logged, "eval": rates.of("evaluate"), "save": rates.of("save")}[kind]
        assert found == sorted(set(wanted))

    def test_steps_are_steps(self, tmp_path: Path) -> None:
        trainer, rates = train(tmp_path, doubling, max_steps=7, save_strategy="steps", save_steps=2, num_train_epochs=1)
        assert trainer.state.global_step == 7
        assert rates.of("save") == [2, 4, 6, 7]
        assert [entry["step"] for entry in trainer.state.log_history if "loss" in entry] == list(range(1, 8))

    def test_max_steps_ends_any_budget(self, tmp_path: Path) -> None:
        trainer, _ = train(tmp_path, doubling, max_steps=5, budget=Budget(epochs=30, samples=10**6))
        assert trainer.state.global_step == 5

    def test_tokens_end_a_run(self, tmp_path: Path) -> None:
        trainer, _ = train(tmp_path, doubling, budget=Budget(tokens=500))
        tokens = trainer.ledger.clock()["tokens"].tolist()
        assert tokens[-2] < 500 <= tokens[-1]

    def test_a_budget_in_tokens_needs_tokens(self, tmp_path: Path) -> None:
        class Numbers(Tokens):
            def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
                return {"inputs_embeds": torch.ones(4, 16), "labels": torch.ones(4).long()}

        with pytest.raises(ValueError, match=r"A budget in tokens needs token counts, but samples of \['train'\]"):
            train(tmp_path, None, Numbers(20, 1), budget=Budget(tokens=500))

    def test_the_bar_knows_the_length(self, tmp_path: Path) -> None:
        totals = []

        class Bar(ProgressCallback):
            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                super().on_step_end(args, state, control, **kwargs)
                totals.append((self.training_bar.n, self.training_bar.total))

        args = arguments(tmp_path, max_steps=-1, num_train_epochs=3, per_device_train_batch_size=4)
        MixingTrainer(
            build_model("llama"), args, train_dataset=Tokens(40, 1), batch_size=doubling, callbacks=[Bar()]
        ).train()
        assert totals[0] == (1, 30)
        assert totals[-1][0] == totals[-1][1]
        assert [n for n, _ in totals] == list(range(1, len(totals) + 1))
        assert all(n < total for n, total in totals[:-1])

    def test_the_rest_of_an_epoch_is_dropped(self, tmp_path: Path) -> None:
        trainer, rates = train(tmp_path, lambda step, size: 7 + step, num_train_epochs=3, dataloader_drop_last=True)
        clock = trainer.ledger.clock()
        assert (clock["total"] == clock["batch_size"]).all()
        assert trainer.state.epoch == 3.0
        assert len(rates.of("epoch")) == 3
        # A single stream begins a new pass with each epoch, as the Trainer does.
        assert trainer.mixing.planner.cursors[0].state_dict()["position"] == 120

    @pytest.mark.parametrize(
        "schedule",
        [schedules.LossChange(interval=1, growth=1.5, maximum=16), schedules.AdaBatch(every=1, factor=1.5)],
    )
    def test_a_size_by_epochs_is_decided_before_the_rest_is_dropped(self, tmp_path: Path, schedule: Any) -> None:
        """Of 10 samples 2, 4 and 1 are left over by batches of 4, 6 and 9: each epoch has one size."""
        trainer, _ = train(tmp_path, schedule, Tokens(10, 1), num_train_epochs=3, dataloader_drop_last=True)
        assert trainer.ledger.clock()["total"].tolist() == [4, 4, 6, 9]

    def test_the_speed_counts_the_samples(self, tmp_path: Path) -> None:
        trainer, _ = train(tmp_path, doubling, num_train_epochs=3)
        final = trainer.state.log_history[-1]
        assert final["train_samples_per_second"] == pytest.approx(120 / final["train_runtime"], rel=0.05)


class TestByHand:
    class Setting(TrainerCallback):
        def __init__(self, **sizes: int | None) -> None:
            self.sizes = {int(step.removeprefix("at")): size for step, size in sizes.items()}
            self.trainer: Any = None

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            if state.global_step in self.sizes:
                self.trainer.mixing.set_batch_size(self.sizes[state.global_step])

    def make(self, folder: Path, batch_size: Any = None, sizes: dict[str, Any] | None = None, **changes: Any) -> Any:
        setting = self.Setting(**({"at2": 10, "at4": None} if sizes is None else sizes))
        args = arguments(
            folder, **{"max_steps": -1, "num_train_epochs": 2, "per_device_train_batch_size": 4, **changes}
        )
        trainer = MixingTrainer(
            build_model("llama"), args, train_dataset=Tokens(40, 1), batch_size=batch_size, callbacks=[setting]
        )
        setting.trainer = trainer
        return trainer

    def test_it_rules_the_next_step(self, tmp_path: Path) -> None:
        trainer = self.make(tmp_path)
        trainer.train()
        totals = trainer.ledger.clock()["total"].tolist()
        assert totals[:7] == [4, 4, 10, 10, 4, 4, 4]
        assert sum(totals) == 80
        assert trainer.state.epoch == 2.0
        logs = [entry["batch_size"] for entry in trainer.state.log_history if "loss" in entry]
        assert logs[:5] == [4, 4, 10, 10, 4]

    def test_it_rules_a_schedule_too(self, tmp_path: Path) -> None:
        trainer = self.make(tmp_path, lambda step, size: 5)
        trainer.train()
        assert trainer.ledger.clock()["total"].tolist()[:6] == [5, 5, 10, 10, 5, 5]

    def test_smaller_steps_than_the_loop_was_laid_out_for(self, tmp_path: Path) -> None:
        trainer = self.make(tmp_path, sizes={"at2": 1})
        trainer.train()
        assert trainer.mixing.clock.num_samples == 80
        assert trainer.state.epoch == 2.0

    def test_larger_steps_than_a_budget_in_steps_was_laid_out_for(self, tmp_path: Path) -> None:
        trainer = self.make(tmp_path, sizes={"at2": 40}, max_steps=12)
        trainer.train()
        assert trainer.state.global_step == 12

    def test_a_rest_that_became_too_small_is_dropped(self, tmp_path: Path) -> None:
        trainer = self.make(tmp_path, sizes={"at8": 9}, dataloader_drop_last=True, eval_strategy="no")
        trainer.train()
        clock = trainer.ledger.clock()
        assert clock["total"].tolist() == [4] * 8 + [9] * 4
        assert trainer.state.epoch == 2.0

    def test_the_learning_rate_follows_at_once(self, tmp_path: Path) -> None:
        trainer = self.make(tmp_path, schedules.Constant(4, learning_rate="sqrt"), sizes={"at2": 16})
        trainer.train()
        clock = trainer.ledger.clock()
        assert clock["learning_rate_factor"].tolist()[:4] == [1, 1, 2, 2]
        assert clock["learning_rate"].tolist()[2] == pytest.approx(0.2 * (1 - clock["progress"][1]), rel=1e-6)


class TestWrongSizes:
    @pytest.mark.parametrize(
        ("wrong", "message"),
        [
            (0, "batch-size function at step 2: expected a whole number of samples, 1 or more, got 0"),
            (-4, "at step 2: .* got -4"),
            (float("nan"), "at step 2: .* got nan"),
            (4.5, "at step 2: .* got 4.5"),
        ],
    )
    def test_the_step_is_named(self, tmp_path: Path, wrong: float, message: str) -> None:
        with pytest.raises(ValueError, match=message):
            train(tmp_path, lambda step, size: wrong if step == 2 else 4, num_train_epochs=1)

    def test_what_is_not_measured_is_refused_at_construction(self, tmp_path: Path) -> None:
        class Clairvoyant(schedules.Constant):
            is_constant = False
            needs = frozenset({"future"})

        with pytest.raises(ValueError, match=r"Clairvoyant needs \['future'\], but a run only observes"):
            train(tmp_path, Clairvoyant(4))

    def test_a_size_beside_the_function_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match="to pass batch_size, use a MixingTrainer"):
            AdaptiveBatchSizeTrainer(doubling, model=build_model("llama"), args=arguments(tmp_path), batch_size=3)

    def test_no_steps_are_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ValueError, match="max_steps=0 trains nothing"):
            train(tmp_path, None, max_steps=0)

    def test_a_budget_is_a_budget(self, tmp_path: Path) -> None:
        with pytest.raises(TypeError, match=r"budget must be a Budget, such as Budget\(tokens=2_000_000_000\)"):
            train(tmp_path, None, budget=100)


@pytest.mark.parametrize(
    "rule", ["LossChange", "SmoothedLossChange", "AdaBatch", "Ramp", "Seesaw", "CriticalBatchWarmup"]
)
def test_every_schedule_goes_with_an_adaptive_mixture(tmp_path: Path, rule: str) -> None:
    schedule: Any = {
        "LossChange": lambda: schedules.LossChange(interval=1, growth=2.0, maximum=16),
        "SmoothedLossChange": lambda: schedules.SmoothedLossChange(
            1e9, 0.5, 2, maximum=16, gradient_norm=True, after_warmup=True
        ),
        "AdaBatch": lambda: schedules.AdaBatch(every=1, maximum=32),
        "Ramp": lambda: schedules.Ramp(16, 100, unit="samples"),
        "Seesaw": lambda: schedules.Seesaw(maximum=16),
        "CriticalBatchWarmup": lambda: schedules.CriticalBatchWarmup({200: 8, 600: 16}),
    }[rule]()
    trainer, _ = train(
        tmp_path, schedule, three_streams(), num_train_epochs=4, mixing=LossChange(num_warmup_observations=1)
    )
    sizes = trainer.ledger.clock()["batch_size"]
    assert sizes.nunique() > 1
    assert trainer.mixing.clock.num_samples == 4 * 37
