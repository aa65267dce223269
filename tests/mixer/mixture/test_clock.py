import itertools
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st
from torch.utils.data import DataLoader
from transformers import Trainer, TrainingArguments

from mixer.mixture.clock import Budget, Clock
from tests.refusals import refused

NAN, INF = float("nan"), float("inf")
AMOUNTS = ("epochs", "samples", "tokens", "steps")


def totals_of(clock: Clock, num_steps: int) -> list[int]:
    totals = []
    for _ in range(num_steps):
        totals.append(clock.next_total())
        clock.tick()
    return totals


class TestBudget:
    @pytest.mark.parametrize(
        ("name", "value", "error"),
        [
            *[(name, 0, ValueError) for name in AMOUNTS],
            *[("epochs", value, ValueError) for value in (-3, NAN, INF)],
            *[("epochs", value, TypeError) for value in (True, "3", [2])],
            *[(name, 1e9, TypeError) for name in AMOUNTS[1:]],
        ],
    )
    def test_what_is_no_budget_is_refused(self, name: str, value: Any, error: type[Exception]) -> None:
        with refused(f"budget.{name}", kind=error, found=value):
            Budget(**{name: value})
        with refused("budget"):
            Budget()

    def test_parts_of_an_epoch_are_fine(self) -> None:
        assert Budget(epochs=0.5).is_in_steps
        assert not Budget(epochs=0.5, tokens=10).is_in_steps

    @pytest.mark.parametrize(
        ("budget", "max_samples", "drop_unit", "expected"),
        [
            *[(Budget(epochs=n), None, 0, steps) for n, steps in [(2, 6), (1.5, 5), (0.1, 1)]],
            *[(Budget(steps=n), None, 0, n) for n in (4, 100)],
            (Budget(steps=50), 10, 0, 3),
            *[(Budget(epochs=10), n, 0, steps) for n, steps in [(1, 1), (4, 1), (5, 2), (10, 3), (11, 4), (900, 30)]],
            *[(Budget(epochs=10), n, 4, steps) for n, steps in [(8, 2), (10, 2), (11, 3), (18, 4), (19, 4), (20, 4)]],
        ],
    )
    def test_steps_of_a_run(self, budget: Budget, max_samples: int | None, drop_unit: int, expected: int) -> None:
        assert Clock(4, 10, budget, drop_unit=drop_unit, max_samples=max_samples).max_steps == expected


def test_the_steps_of_a_run_are_those_of_the_trainer(tmp_path: Path) -> None:
    """Of whole epochs, of parts, and of parts whose product with an epoch is rounded."""
    for num_samples, batch_size, accumulated in itertools.product((5, 30, 301), (1, 4), (1, 3)):
        loader, pass_size = DataLoader(range(num_samples), batch_size), batch_size
        for epochs in (0.1, 1.1, 5 / 3, 2, 2.5, 7 / 3, 0.1 + 0.2):
            plain = TrainingArguments(
                str(tmp_path), num_train_epochs=epochs, gradient_accumulation_steps=accumulated, use_cpu=True
            )
            trainer: Any = SimpleNamespace(
                get_total_train_batch_size=lambda _: 1, get_sp_size=lambda: 1, num_examples=lambda _: 1
            )
            *_, expected = Trainer.set_initial_training_values(trainer, plain, loader)
            clock = Clock(batch_size * accumulated, num_samples, Budget(epochs=epochs), pass_size=pass_size)
            assert clock.planned_steps == expected, (num_samples, batch_size, accumulated, epochs)


class TestEpoch:
    @pytest.mark.parametrize(
        ("batch_size", "epoch_size", "num_epochs", "drop_unit", "expected"),
        [
            (4, 10, 2, 0, [4, 4, 2, 4, 4, 2]),
            (4, 10, 2, 4, [4, 4, 4, 4]),
            (8, 23, 1, 2, [8, 8, 6]),  # cut to whole units
            (64, 10, 3, 0, [10, 10, 10]),
        ],
    )
    def test_the_last_step_is_the_remainder(self, batch_size, epoch_size, num_epochs, drop_unit, expected) -> None:
        clock = Clock(batch_size, epoch_size, Budget(epochs=num_epochs), drop_unit)
        assert totals_of(clock, clock.max_steps) == expected
        assert clock.dropped_samples == epoch_size - sum(expected) // num_epochs

    @given(
        batch_size=st.integers(1, 50),
        epoch_size=st.integers(1, 400),
        num_epochs=st.integers(1, 4),
        drop_unit=st.integers(0, 20),
    )
    def test_the_steps_of_an_epoch_sum_to_it(self, batch_size, epoch_size, num_epochs, drop_unit) -> None:
        clock = Clock(batch_size, epoch_size, Budget(epochs=num_epochs), min(drop_unit, epoch_size))
        for _ in range(num_epochs):
            totals = totals_of(clock, clock.steps_per_epoch)
            assert sum(totals) == clock.epoch_size == epoch_size - clock.dropped_samples
            assert min(totals) >= 1
            assert max(totals) <= batch_size
            assert clock.at_epoch_end
        assert clock.step == clock.max_steps


@pytest.mark.parametrize(
    ("drop_unit", "expected"),
    [
        (
            0,
            [
                (0, 0, 0, False),
                *[(1 / 3, 1 / 6, 0.4, False), (2 / 3, 1 / 3, 0.8, False), (1, 1 / 2, 1, True)],
                *[(4 / 3, 2 / 3, 0.4, False), (5 / 3, 5 / 6, 0.8, False), (2, 1, 1, True)],
            ],
        ),
        # By steps the epoch is done, of 10 samples 8 were seen.
        (4, [(0, 0, 0, False), (0.5, 0.25, 0.4, False), (1, 0.5, 0.8, True), (1.5, 0.75, 0.4, False)]),
    ],
)
def test_it_counts_as_the_trainer_counts(drop_unit: int, expected: list[tuple[float, ...]]) -> None:
    clock, found = Clock(4, 10, Budget(epochs=2), drop_unit), []
    for _ in expected:
        found.append((clock.epoch, clock.progress, clock.epoch_coverage, clock.at_epoch_end))
        clock.tick()
    assert rounded(found) == rounded(expected)


def rounded(rows: list[tuple[float, ...]]) -> list[tuple[float, ...]]:
    return [tuple(round(value, 12) for value in row) for row in rows]


class TestState:
    @given(step=st.integers(0, 50))
    def test_it_goes_on_where_it_was(self, step: int) -> None:
        clock, resumed = Clock(4, 30, Budget(epochs=3)), Clock(4, 30, Budget(epochs=6))  # a longer budget is taken
        totals_of(clock, step)
        resumed.load_state_dict(json.loads(json.dumps(clock.state_dict())))
        assert (resumed.step, resumed.epoch) == (clock.step, clock.epoch)
        assert totals_of(resumed, 20) == totals_of(clock, 20)

    @pytest.mark.parametrize(("is_constant", "field"), [(True, "step_in_epoch"), (False, "samples_in_epoch")])
    def test_what_is_beyond_the_end_of_an_epoch_is_refused(self, is_constant: bool, field: str) -> None:
        clock = Clock(4, 30, Budget(epochs=3), is_constant=is_constant)
        end = {"step_in_epoch": 8, "samples_in_epoch": 30}[field]
        clock.load_state_dict({**clock.state_dict(), field: end})
        with refused("step_in_epoch"):
            clock.load_state_dict({**clock.state_dict(), field: end + 1})


def test_an_empty_epoch_is_refused() -> None:
    with refused("epoch_size"):
        Clock(4, 0, Budget(epochs=1))


@pytest.mark.parametrize("is_constant", [True, False])
def test_an_epoch_anew_has_counted_nothing(is_constant: bool) -> None:
    clock = Clock(4, 10, Budget(epochs=3), is_constant=is_constant)
    for _ in range(4):
        clock.tick(num_tokens=5)
    before = clock.state_dict()
    anew = clock.zeroed_copy()
    counts = (anew.step, anew.step_in_epoch, anew.num_epochs_done, anew.num_samples, anew.num_tokens)
    assert (*counts, anew.samples_in_epoch) == (0,) * 6
    anew.tick()
    assert clock.state_dict() == before
    assert clock.num_tokens == 20
