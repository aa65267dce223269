import itertools
import json
import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset, TensorDataset

from mixer import AdaptiveBatchSampler, Hold, LossChange, Scheduled, Stream, schedules
from mixer.loading.report import make_report
from mixer.mixture.clock import Budget
from mixer.schedules import BatchDecision, BatchObservation, Schedule


def _ranks(world_size: int, *args: Any, **options: Any) -> list[AdaptiveBatchSampler]:
    return [AdaptiveBatchSampler(*args, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def _epochs(samplers: list[AdaptiveBatchSampler], num_epochs: int, sizes: Iterator[int]) -> Iterator[list[list[int]]]:
    """All ranks' indices of each batch, without padding, while the size changes before every batch."""
    for _ in range(num_epochs):
        iterators = [iter(sampler) for sampler in samplers]
        while True:
            size = next(sizes)
            for sampler in samplers:
                sampler.set_batch_size(size)
            batches = [next(iterator, None) for iterator in iterators]
            if batches[0] is None:
                assert batches == [None] * len(samplers)
                break
            yield [[] if s.is_padding else batch or [] for s, batch in zip(samplers, batches, strict=True)]


@settings(max_examples=20)
@given(
    lengths=st.lists(st.integers(3, 40), min_size=1, max_size=3),
    world_size=st.integers(1, 3),
    sizes=st.lists(st.integers(3, 15), min_size=1, max_size=20),
)
def test_every_sample_comes_once_an_epoch_whatever_the_sizes(
    lengths: list[int], world_size: int, sizes: list[int]
) -> None:
    data = {f"s{k}": range(n) for k, n in enumerate(lengths)}
    samplers = _ranks(world_size, data, sizes[0])
    seen: list[list[int]] = [[]]
    asked = itertools.cycle(sizes)
    for epoch in range(3):
        for batch in _epochs(samplers, 1, asked):
            own_sizes = [len(part) for part in batch]
            assert max(own_sizes) - min(own_sizes) <= 1
            seen[-1] += [index for part in batch for index in part]
        assert [sampler.epoch for sampler in samplers] == [epoch + 1] * world_size
        seen.append([])
    assert all(sorted(epoch) == list(range(sum(lengths))) for epoch in seen[:-1])


@settings(max_examples=20)
@given(
    length=st.integers(8, 40),
    world_size=st.integers(1, 3),
    sizes=st.lists(st.integers(3, 8), min_size=1, max_size=20),
)
def test_where_the_rest_is_dropped_batches_are_whole_and_no_sample_comes_twice_an_epoch(
    length: int, world_size: int, sizes: list[int]
) -> None:
    samplers = _ranks(world_size, length, sizes[0], drop_last=True)
    asked = itertools.cycle(sizes)
    for _ in range(3):
        seen: list[int] = []
        for batch in _epochs(samplers, 1, asked):
            assert sum(map(len, batch)) == samplers[0].mixing.batch_size
            seen += [index for part in batch for index in part]
        assert len(seen) == len(set(seen)) > length - 8


def test_the_published_example() -> None:
    samplers = _ranks(2, 10, lambda step, batch_size: 2 + 2 * (step // 5))
    coverage: list[list[float]] = []
    for _ in range(5):
        coverage.append([])
        for _ in zip(*samplers, strict=True):
            assert samplers[0].coverage == samplers[1].coverage
            coverage[-1].append(round(samplers[0].coverage, 9))
    assert coverage == [[0.2, 0.4, 0.6, 0.8, 1], [0.4, 0.8, 1], [0.4, 0.8, 1], [0.6, 1], [0.6, 1]]


def test_a_size_rules_the_very_next_batch() -> None:
    sampler = AdaptiveBatchSampler(100, 10)
    sizes = []
    for batch in sampler:
        sizes.append(len(batch))
        sampler.set_batch_size(None if len(sizes) == 3 else 10 * len(sizes) + 5)
    assert sizes == [10, 15, 25, 10, 40]
    assert len(sampler) == 2


def test_indices_of_several_streams_are_those_of_their_concatenation() -> None:
    streams = [Stream("a", torch.arange(5), weight=1), Stream("b", torch.arange(100, 120), weight=1)]
    sampler = AdaptiveBatchSampler(streams, 6, epoch_size=30)
    for number, batch in enumerate(sampler):
        values = [int(sampler.dataset[index]) for index in batch]
        assert [int(value >= 100) for value in values] == sampler.stream_ids.tolist()
        assert sorted(sampler.stream_ids.tolist()) == ([0, 0, 0, 1, 1, 1] if number < 2 else [1] * 6)
        if number == 1:  # weights rule the very next batch
            sampler.set_weights({"a": 0, "b": 1})


def test_an_epoch_that_was_left_is_gone_on_with() -> None:
    sampler = AdaptiveBatchSampler(5, 2, shuffle=False)
    assert [next(iter(sampler)), *sampler] == [[0, 1], [2, 3], [4]]
    assert sampler.epoch == 1


def test_a_rank_without_a_sample_is_given_one_that_counts_for_nothing() -> None:
    samplers = _ranks(3, 7, 6, shuffle=False)
    *_, last = zip(*samplers, strict=True)
    assert [sampler.is_padding for sampler in samplers].count(True) == 2
    assert {index for batch in last for index in batch} == {6}
    assert sorted(sampler.loss_scale for sampler in samplers) == [0.0, 0.0, 3.0]


def test_scaled_losses_average_to_that_of_the_whole_batch() -> None:
    samplers = _ranks(3, 40, 8)
    for batches in itertools.islice(zip(*samplers, strict=True), 3):
        scaled = [sum(batch) / len(batch) * s.loss_scale for batch, s in zip(batches, samplers, strict=True)]
        assert sum(scaled) / 3 == pytest.approx(sum(map(sum, batches)) / 8)


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("stop", [1, 5])
def test_resumed_in_the_middle_it_gives_what_the_uninterrupted_one_gives(stop: int, drop_last: bool) -> None:
    def build() -> AdaptiveBatchSampler:
        policy = LossChange(num_warmup_observations=1)
        return AdaptiveBatchSampler({"a": range(13), "b": range(9)}, _every_third, mixing=policy, drop_last=drop_last)

    whole = _run(build(), 14)
    interrupted, resumed = build(), build()
    start = _run(interrupted, stop)
    resumed.load_state_dict(json.loads(json.dumps(interrupted.state_dict())))
    assert start + _run(resumed, 14 - stop) == whole


def _every_third(step: int, batch_size: int) -> int:
    return 4 + step // 3


def _run(sampler: AdaptiveBatchSampler, num_batches: int) -> list[list[int]]:
    batches: list[list[int]] = []
    while True:
        for batch in sampler:
            batches.append(batch)
            step = sampler.mixing.clock.step
            sampler.observe({"a": 3.0 / (1 + step), "b": 2.0 + math.sin(step)})
            if len(batches) == num_batches:
                return batches


def test_a_state_fits_another_number_of_ranks() -> None:
    one, *_ = _ranks(1, 50, 6)
    list(itertools.islice(one, 3))
    two = _ranks(2, 50, 6)
    for sampler in two:
        sampler.load_state_dict(json.loads(json.dumps(one.state_dict())))
    expected = sorted(next(iter(one)))
    assert sorted(itertools.chain(*next(zip(*two, strict=True)))) == expected


def test_a_state_of_other_data_is_refused() -> None:
    sampler = AdaptiveBatchSampler(10, 2)
    with pytest.raises(ValueError, match="load_state_dict: stream 'train': length was 11 when the run was saved"):
        sampler.load_state_dict(AdaptiveBatchSampler(11, 2).state_dict())
    with pytest.raises(ValueError, match="load_state_dict: it has format None"):
        sampler.load_state_dict({})


class _Doubling(Schedule):
    needs = frozenset({"loss", "tokens"})

    def __init__(self) -> None:
        super().__init__(initial=2)
        self.seen: list[BatchObservation] = []

    def update(self, observation: BatchObservation) -> BatchDecision:
        self.seen.append(observation)
        return BatchDecision(observation.batch_size * (2 if observation.loss < 1.0 else 1))


def test_what_is_reported_reaches_the_schedule() -> None:
    schedule = _Doubling()
    sampler = AdaptiveBatchSampler(100, schedule)
    sizes = []
    for batch in itertools.islice(sampler, 4):
        sizes.append(len(batch))
        sampler.observe(torch.tensor(0.5 if len(sizes) == 2 else 1.5, requires_grad=True), tokens=[7 * len(batch)])
    assert sizes == [2, 2, 4, 4]
    assert [seen.loss for seen in schedule.seen] == [1.5, 0.5, 1.5, 1.5]
    assert schedule.seen[-1].num_tokens == 7 * 12


def test_tokens_that_are_needed_and_not_reported_are_an_error() -> None:
    sampler = AdaptiveBatchSampler(100, 4, budget=Budget(tokens=50))
    with pytest.raises(ValueError, match=r"budget in tokens needs token counts.*observe\(tokens=\.\.\.\)"):
        list(sampler)


def test_losses_that_are_needed_and_not_reported_are_missed_once(caplog: pytest.LogCaptureFixture) -> None:
    list(AdaptiveBatchSampler({"a": range(9), "b": range(9)}, 4, mixing=LossChange()))
    assert [record.getMessage() for record in caplog.records] == [
        "The mixture depends on ['losses'], which no observe(...) call has reported."
    ]


def test_a_batch_is_reported_on_once() -> None:
    sampler = AdaptiveBatchSampler(10, 2)
    with pytest.raises(RuntimeError, match="no batch waits for a report"):
        sampler.observe(1.0)
    next(iter(sampler))
    sampler.observe(1.0)
    with pytest.raises(RuntimeError, match="no batch waits for a report"):
        sampler.observe(1.0)


@pytest.mark.parametrize("losses", [{"b": 2.0}, [math.inf, 2.0], torch.tensor([math.nan, 2.0])])
def test_losses_come_by_name_or_in_order(losses: Any) -> None:
    report = make_report(["a", "b"], {"losses": losses}, {"loss": math.nan})
    np.testing.assert_array_equal(report["losses"], [math.nan, 2.0])
    assert math.isnan(report["loss"])


@pytest.mark.parametrize("losses", [{"c": 1.0}, [1.0], 1.0])
def test_a_report_on_other_streams_is_refused(losses: Any) -> None:
    sampler = AdaptiveBatchSampler({"a": range(9), "b": range(9)}, 4)
    next(iter(sampler))
    with pytest.raises(ValueError, match=r"observe: losses .* \['a', 'b'\]"):
        sampler.observe(losses)


@pytest.mark.parametrize(
    ("max_epochs", "budget", "num_samples"),
    [(None, Budget(epochs=1.5), 15), (None, Budget(samples=23), 23), (None, Budget(steps=4), 14), (1.5, None, 15)],
)
def test_after_the_budget_or_the_streams_there_is_nothing_more(
    max_epochs: float | None, budget: Budget | None, num_samples: int
) -> None:
    sampler = AdaptiveBatchSampler([Stream("a", range(10), max_epochs=max_epochs)], 4, budget=budget)
    assert not sampler.is_finished
    assert sum(len(batch) for _ in range(5) for batch in sampler) == num_samples
    assert sampler.is_finished
    assert list(sampler) == []


class _Rows(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


@pytest.mark.parametrize(
    ("data", "options", "error", "message"),
    [
        (10, {"batch_size": 0}, ValueError, "must be at least 1 sample, got 0"),
        (10, {"batch_size": 2.5}, TypeError, None),
        (10, {"batch_size": None}, ValueError, "batch_size=Constant has no initial size"),
        (10, {"batch_size": 2, "world_size": 3}, ValueError, "batch_size: 2 samples in all are fewer than the 3 ranks"),
        (2, {"world_size": 3}, ValueError, "data: an epoch of 2 samples is fewer than the world_size=3 ranks"),
        (10, {"rank": 2, "world_size": 2}, ValueError, "rank must be 0 or more and below world_size=2, got 2"),
        (10, {"rank": -1}, ValueError, "rank must be 0 or more and below world_size=1, got -1"),
        (10, {"world_size": 1.0}, TypeError, "world_size must be a whole number, got 1.0"),
        (0, {}, ValueError, "data must be at least 1 sample, got 0"),
        (2.0, {}, TypeError, "needs __len__ and __getitem__"),
        ({}, {}, ValueError, "data has no streams"),
        (_Rows(), {}, TypeError, "an iterable dataset cannot be indexed"),
        (3, {"drop_last": True}, ValueError, "drop_last=True leaves nothing of an epoch of 3 samples"),
        (10, {"budget": 3}, TypeError, r"budget must be a Budget, such as Budget\(epochs=3\), got 3"),
        ([Stream("a", range(9)), Stream("b", range(9), enters_at=0.5)], {}, ValueError, "'b' enters or leaves at"),
        (10, {"mixing": "Unifrom"}, ValueError, "Did you mean 'Uniform'"),
    ],
)
def test_bad_input_is_refused(data: Any, options: dict[str, Any], error: type[Exception], message: str | None) -> None:
    with pytest.raises(error, match=message):
        AdaptiveBatchSampler(data, **{"batch_size": 4, **options})


@pytest.mark.parametrize("batch_size", [0, 1, 2.0])
def test_a_bad_size_by_hand_is_refused(batch_size: Any) -> None:
    with pytest.raises((ValueError, TypeError), match="set_batch_size"):
        AdaptiveBatchSampler(10, 4, world_size=2, rank=0).set_batch_size(batch_size)


@pytest.mark.parametrize("num_workers", [0, pytest.param(1, marks=pytest.mark.full)])
def test_a_data_loader_trains_on_it(num_workers: int) -> None:
    inputs = torch.randn(64, 3, generator=torch.Generator().manual_seed(0))
    targets = inputs @ torch.tensor([1.0, -2.0, 0.5])
    sampler = AdaptiveBatchSampler(64, lambda step, batch_size: 4 + step // 4)
    assert not hasattr(sampler, "batch_size")  # accelerate finds no size that all batches had
    loader = DataLoader(TensorDataset(inputs, targets), batch_sampler=sampler, num_workers=num_workers)
    model, sizes = torch.nn.Linear(3, 1, bias=False), []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(6):
        for rows, expected in loader:
            sizes.append(len(rows))
            loss = torch.nn.functional.mse_loss(model(rows)[:, 0], expected)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    assert sum(sizes) == 6 * 64
    assert sizes[:5] == [4, 4, 4, 4, 5]
    assert loss.item() < 1e-2


def test_what_goes_by_the_progress_of_a_run_needs_one() -> None:
    scheduled = Hold(Scheduled([(0.0, [1.0])]), 3)
    for size, mixing in ((schedules.Ramp(8, 1.0, unit="progress", initial=4), None), (4, scheduled)):
        with pytest.raises(ValueError, match="depends on the progress of the run, which is undefined without a budget"):
            AdaptiveBatchSampler(20, size, mixing=mixing)
        assert AdaptiveBatchSampler(20, size, mixing=mixing, budget=Budget(epochs=2)).mixing.clock.progress == 0.0
