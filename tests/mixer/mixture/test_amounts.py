"""Absolute amounts of streams: `max_samples` and `max_tokens`."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils.data import IterableDataset

from mixer import Budget, MixingTrainer, Stream, Uniform
from mixer.mixture.planner import Planner
from tests.helpers import Tokens, arguments, build_model, mixing_trainer
from tests.refusals import refused


class _Rows(IterableDataset):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return (Tokens(1, seed)[0] for seed in range(40))


def _trainer(folder: Path, streams: list[Stream], args: dict[str, Any] | None = None, **options: Any) -> MixingTrainer:
    given = {"per_device_train_batch_size": 8, "max_steps": -1, "num_train_epochs": 3, **(args or {})}
    return mixing_trainer(
        MixingTrainer, build_model("llama"), arguments(folder, **given), train_dataset=streams, **options
    )


def _had(trainer: MixingTrainer) -> tuple[dict[str, int], dict[str, int]]:
    names = trainer.mixing.names
    seen, tokens = trainer.mixing.seen.tolist(), trainer.mixing.num_tokens.tolist()
    return dict(zip(names, seen, strict=True)), dict(zip(names, tokens, strict=True))


@pytest.mark.parametrize("drawing", ["exact", "multinomial"])
def test_a_stream_gives_exactly_its_samples_and_repeats_them_if_it_must(drawing: Any) -> None:
    planner = Planner([Stream("a", range(10), max_samples=25), Stream("b", range(10))], 0, drawing=drawing)
    for step in range(20):
        shares, available = planner.shares(np.array([0.5, 0.5]), 0.0)
        planner.draw(shares, available, 6, step)
    assert planner.seen.tolist() == [25, 95]


@pytest.mark.parametrize(("max_epochs", "max_samples", "end"), [(2, 15, 15), (1, 15, 10), (None, 25, 25)])
def test_the_first_limit_counts(max_epochs: float | None, max_samples: int, end: int) -> None:
    assert Stream("a", range(10), max_epochs=max_epochs, max_samples=max_samples).end == end


def test_samples_by_tokens_are_those_that_the_mean_length_leaves() -> None:
    planner = Planner([Stream("a", range(10), max_tokens=100), Stream("b", range(10))], 0)
    shares, available = planner.shares(np.array([0.5, 0.5]), 0.0)
    assert available.tolist() == [np.inf, np.inf]  # no length is known
    planner.draw(shares, available, 8, 0)
    planner.count_amounts(np.array([[40, 40], [0, 0]]))
    assert planner.shares(np.array([0.5, 0.5]), 0.0)[1].tolist() == [6.0, np.inf]
    planner.draw(shares, np.array([6.0, np.inf]), 4, 1)  # planned, but not counted yet
    assert planner.shares(np.array([0.5, 0.5]), 0.0)[1].tolist() == [4.0, np.inf]
    planner.count_amounts(np.array([[100, 60], [0, 0]]))
    assert planner.active(0.0).tolist() == [False, True]


def test_amounts_of_all_streams_are_the_length_of_the_run_and_its_mixture(tmp_path: Path) -> None:
    streams = [Stream("a", Tokens(50, 1), max_samples=32), Stream("b", _Rows(), max_samples=16)]
    trainer = _trainer(tmp_path, streams)
    trainer.train()
    assert (_had(trainer)[0], trainer.state.global_step) == ({"a": 32, "b": 16}, 6)
    counts = trainer.ledger.to_pandas().pivot(index="step", columns="stream", values="count")
    assert (np.abs(counts["a"] - 2 * counts["b"]) <= 3).all()  # even over the run
    described = {row["name"]: row["max_samples"] for row in trainer.describe_run()["streams"]}
    assert described == {"a": 32, "b": 16}


def test_an_amount_of_tokens_is_kept_to_a_step_and_after_a_resume(tmp_path: Path) -> None:
    def new() -> MixingTrainer:
        streams = [Stream("a", Tokens(40, 1), max_tokens=150), Stream("b", Tokens(40, 2))]
        return _trainer(tmp_path, streams, {"max_steps": 12, "save_steps": 4, "save_strategy": "steps"})

    whole, resumed = new(), new()
    whole.train()
    resumed.train(resume_from_checkpoint=str(tmp_path / "checkpoint-4"))
    samples, tokens = _had(whole)
    longest = max(len(row["input_ids"]) for row in (Tokens(40, 1)[k] for k in range(40)))
    assert 150 <= tokens["a"] < 150 + 8 * longest
    assert sum(samples.values()) == 96
    assert _had(resumed) == (samples, tokens)
    assert all(torch.equal(x, y) for x, y in zip(whole.model.parameters(), resumed.model.parameters(), strict=True))


def test_all_amounts_in_tokens_are_a_budget_in_tokens(tmp_path: Path) -> None:
    streams = [Stream("a", Tokens(40, 1), max_tokens=200), Stream("b", Tokens(40, 2), max_tokens=100)]
    trainer = _trainer(tmp_path, streams)
    assert (trainer.mixing.clock.budget, trainer.mixing.policy.unit) == (Budget(tokens=300), "tokens")
    assert trainer.mixing.weights == pytest.approx({"a": 2 / 3, "b": 1 / 3})


TWENTY = [{"max_samples": 20}] * 2


@pytest.mark.parametrize(
    ("fields", "args", "options", "option"),
    [
        ([{"max_samples": 0}, {}], {}, {}, "max_samples"),
        ([{"max_samples": 1.5}, {}], {}, {}, "max_samples"),
        ([{"max_tokens": True}, {}], {}, {}, "max_tokens"),
        (TWENTY, {"max_steps": 10}, {}, "max_samples"),
        ([{"max_tokens": 20}] * 2, {}, {"budget": Budget(tokens=1_000)}, "max_tokens"),
        ([{"max_samples": 200}, {}], {"max_steps": 10}, {}, "max_samples"),
        (TWENTY, {"num_train_epochs": 2}, {}, "num_train_epochs"),
    ],
)
def test_amounts_that_do_not_add_up_are_refused(tmp_path, fields, args, options, option) -> None:
    def make() -> MixingTrainer:
        streams = [Stream(name, Tokens(40, 1), **own) for name, own in zip("ab", fields, strict=True)]
        return _trainer(tmp_path, streams, args, **options)

    with refused(option, kind=(ValueError, TypeError)):
        make()


def test_samples_without_tokens_cannot_be_counted_against_an_amount(tmp_path: Path) -> None:
    class Plain(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def forward(self, x: torch.Tensor, labels: torch.Tensor | None = None) -> dict[str, torch.Tensor]:
            return {"loss": self.layer(x).square().mean()}

    rows = [{"x": torch.ones(2), "labels": torch.zeros(1)} for _ in range(8)]
    streams = [Stream("a", rows, max_tokens=10), Stream("b", rows)]
    trainer = MixingTrainer(Plain(), arguments(tmp_path, max_steps=2), train_dataset=streams, mixing=Uniform())
    with refused("max_tokens"):
        trainer.train()
