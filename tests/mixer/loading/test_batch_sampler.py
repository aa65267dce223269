import itertools
import json
import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.utils.data import DataLoader

from mixer import ODM, AdaptiveBatchSampler, Hold, LossChange, Scheduled, Stream, schedules
from mixer.loading.batch_report import make_report
from mixer.measurements import Loss, MeanLoss
from mixer.mixture.clock import Budget
from mixer.schedules import BatchDecision, BatchObservation, Schedule
from tests.mixer.loading.rows_on_ranks import Rows
from tests.refusals import refused


def _ranks(world_size: int, *args: Any, **options: Any) -> list[AdaptiveBatchSampler]:
    return [AdaptiveBatchSampler(*args, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


@settings(max_examples=60)
@given(
    lengths=st.lists(st.integers(3, 40), min_size=1, max_size=3),
    world_size=st.integers(1, 3),
    sizes=st.lists(st.integers(3, 15), min_size=1, max_size=20),
    drop_last=st.booleans(),
)
def test_every_sample_comes_once_an_epoch_whatever_the_sizes(lengths, world_size, sizes, drop_last) -> None:
    total = sum(lengths)
    drop_last &= max(sizes) <= total
    data = total if drop_last else {f"s{k}": range(n) for k, n in enumerate(lengths)}
    samplers, asked = _ranks(world_size, data, sizes[0], drop_last=drop_last), itertools.cycle(sizes)
    for epoch in range(3):
        seen: list[int] = []
        iterators = [iter(sampler) for sampler in samplers]
        while True:
            size = next(asked)
            for sampler in samplers:
                sampler.set_batch_size(size)
            batches = [next(iterator, None) for iterator in iterators]
            if None in batches:
                break
            batch = [[] if s.is_padding else own for s, own in zip(samplers, batches, strict=True)]
            own_sizes = [len(part) for part in batch]
            assert max(own_sizes) - min(own_sizes) <= 1
            assert not drop_last or sum(own_sizes) == samplers[0].mixing.batch_size
            seen += itertools.chain(*batch)
        assert batches == [None] * world_size
        assert [sampler.epoch for sampler in samplers] == [epoch + 1] * world_size
        assert len(seen) == len(set(seen))
        assert len(seen) > total - max(sizes) if drop_last else sorted(seen) == list(range(total))


def test_the_published_example() -> None:
    samplers = _ranks(2, 10, lambda step, batch_size: 2 + 2 * (step // 5))
    coverage = [[{round(s.coverage, 9) for s in samplers} for _ in zip(*samplers, strict=True)] for _ in range(5)]
    expected = [[0.2, 0.4, 0.6, 0.8, 1], [0.4, 0.8, 1], [0.4, 0.8, 1], [0.6, 1], [0.6, 1]]
    assert coverage == [[{value} for value in epoch] for epoch in expected]


def test_a_size_rules_the_very_next_batch() -> None:
    sampler = AdaptiveBatchSampler(100, 10)
    sizes = []
    for batch in sampler:
        sizes.append(len(batch))
        sampler.set_batch_size(None if len(sizes) == 3 else 10 * len(sizes) + 5)
    assert sizes == [10, 15, 25, 10, 40]
    assert len(sampler) == 2


def test_weights_rule_the_very_next_batch_whose_indices_are_those_of_all_streams_together() -> None:
    sampler = AdaptiveBatchSampler({"a": torch.arange(50), "b": torch.arange(100, 150)}, 10)
    counts = []
    for batch, weights in zip(sampler, ({"a": 1, "b": 0}, [0, 1], [1, 1]), strict=False):
        counts.append(int(sampler.stream_ids.sum()))
        assert [int(sampler.dataset[index] >= 100) for index in batch] == sampler.stream_ids.tolist()
        sampler.set_weights(weights)
    assert counts == [5, 0, 10]


def test_scaled_losses_average_to_that_of_the_whole_batch_and_padding_counts_for_nothing() -> None:
    samplers = _ranks(3, 41, 8, shuffle=False)
    for number, batches in enumerate(zip(*samplers, strict=True)):
        own = [[] if sampler.is_padding else batch for batch, sampler in zip(batches, samplers, strict=True)]
        assert sorted(itertools.chain(*own)) == list(range(41))[8 * number : 8 * number + 8]
        scaled = [sum(batch) / len(batch) * s.loss_scale for batch, s in zip(batches, samplers, strict=True)]
        assert sum(scaled) / 3 == pytest.approx(sum(map(sum, own)) / sum(map(len, own)))
    assert batches == ([40], [40], [40])
    assert sorted(sampler.loss_scale for sampler in samplers) == [0.0, 0.0, 3.0]
    assert not hasattr(samplers[0], "batch_size")  # which accelerate would take for that of all batches


def test_a_state_fits_another_number_of_ranks_but_no_other_data() -> None:
    one, *_ = _ranks(1, 50, 6)
    list(itertools.islice(one, 3))
    two = _ranks(2, 50, 6)
    for sampler in two:
        sampler.load_state_dict(json.loads(json.dumps(one.state_dict())))
    assert sorted(itertools.chain(*next(zip(*two, strict=True)))) == sorted(next(iter(one)))
    with refused("load_state_dict"):
        one.load_state_dict(AdaptiveBatchSampler(51, 6).state_dict())
    with refused("load_state_dict"):
        one.load_state_dict({})


def test_what_is_reported_reaches_the_schedule() -> None:
    class Doubling(Schedule):
        needs, unit = (MeanLoss(),), "tokens"

        def update(self, observation: BatchObservation) -> BatchDecision:
            seen.append(observation)
            return BatchDecision(observation.batch_size * (2 if observation[MeanLoss] < 1.0 else 1))

    seen: list[BatchObservation] = []
    schedule = Doubling(initial=2)
    sampler = AdaptiveBatchSampler(100, schedule)
    sizes = []
    for batch in itertools.islice(sampler, 4):
        sizes.append(len(batch))
        sampler.observe(torch.tensor(0.5 if len(sizes) == 2 else 1.5, requires_grad=True), tokens=[7 * len(batch)])
    assert sizes == [2, 2, 4, 4]
    assert [observation[MeanLoss] for observation in seen] == [1.5, 0.5, 1.5, 1.5]
    assert seen[-1].num_tokens == 7 * 12


def test_losses_that_are_needed_and_not_reported_are_missed_once_and_tokens_at_once(caplog) -> None:
    list(AdaptiveBatchSampler({"a": range(9), "b": range(9)}, 4, mixing=LossChange()))
    missed = "The mixture depends on [{!r}], and batch {} was counted without: report them by observe(...)."
    assert caplog.messages == [missed.format("Loss", 1)]
    sampler = AdaptiveBatchSampler({"a": range(9), "b": range(9)}, 4, mixing="CoBa")
    list(sampler)
    assert len(caplog.messages) == 1  # the evaluation may come after the epoch
    list(sampler)
    assert caplog.messages[1:] == [missed.format("EvaluationLoss", 6)]
    with refused("A budget in tokens"):
        list(AdaptiveBatchSampler(100, 4, budget=Budget(tokens=50)))


@pytest.mark.parametrize("num_workers", [0, 1])
def test_workers_that_request_batches_ahead_of_a_report_or_state_are_told(num_workers: int, caplog) -> None:
    sampler = AdaptiveBatchSampler(12, 4)
    for _ in DataLoader(range(12), batch_sampler=sampler, num_workers=num_workers):
        sampler.observe(1.0)
        sampler.state_dict()
        break
    assert ["MixingDataLoader" in message for message in caplog.messages] == [True] * num_workers


def test_a_policy_with_other_arguments_goes_on_and_the_log_names_them(caplog) -> None:
    data = {"a": range(9), "b": range(9)}
    state = AdaptiveBatchSampler(data, 4, mixing=LossChange()).state_dict()
    AdaptiveBatchSampler(data, 4, mixing=LossChange()).load_state_dict(state)
    assert not caplog.messages
    AdaptiveBatchSampler(data, 4, mixing=LossChange(num_warmup_observations=3)).load_state_dict(state)
    assert "'num_warmup_observations': 3" in caplog.text


def test_a_batch_without_room_for_all_streams_and_a_long_warm_up_are_told(caplog) -> None:
    AdaptiveBatchSampler({"a": range(9), "b": range(9)}, 1, mixing=Hold(ODM(), 3))
    small, long = caplog.messages
    assert "batch_size=1" in small
    assert "ODM keeps your weights for the first 2000 steps" in long


@pytest.mark.parametrize("losses", [{"c": 1.0}, [1.0], 1.0, [1.0, 2.0, 3.0]])
def test_a_second_report_and_one_on_other_streams_are_refused(losses: Any) -> None:
    sampler = AdaptiveBatchSampler({"a": range(9), "b": range(9)}, 4)
    for _ in range(2):
        with pytest.raises(RuntimeError):
            sampler.observe(1.0)
        next(iter(sampler))
        sampler.observe([1.0, 2.0])
    next(iter(sampler))
    with refused("observe"):
        sampler.observe(losses)
    for fitting in ({"b": 2.0}, [math.inf, 2.0], torch.tensor([math.nan, 2.0])):  # by name or in order
        report = make_report(["a", "b"], fitting, math.nan, {})
        np.testing.assert_array_equal(report[Loss], [math.nan, 2.0])
        assert math.isnan(report[MeanLoss])


@pytest.mark.parametrize(
    ("data", "budget", "num_samples"),
    [
        (10, Budget(epochs=1.5), 15),
        (10, Budget(samples=23), 23),
        (10, Budget(steps=4), 14),
        ([Stream("a", range(10), max_epochs=1.5)], None, 15),
    ],
)
def test_after_the_budget_or_all_streams_there_is_nothing_more(data: Any, budget: Any, num_samples: int) -> None:
    by_progress = {"mixing": Scheduled([(0.0, [1.0])])} if budget else {}
    sampler = AdaptiveBatchSampler(data, 4, budget=budget, **by_progress)
    assert not sampler.is_finished
    assert sum(len(batch) for _ in range(5) for batch in sampler) == num_samples
    assert sampler.is_finished
    assert list(sampler) == []


_NEEDS_A_BUDGET = "budget"


@pytest.mark.parametrize(
    ("data", "options", "error", "option"),
    [
        (10, {"batch_size": 0}, ValueError, "batch_size"),
        (10, {"batch_size": None}, ValueError, "batch_size"),
        (2, {"world_size": 3}, ValueError, "data"),
        (10, {"rank": 2, "world_size": 2}, ValueError, "rank"),
        (10, {"world_size": 1.0}, TypeError, "world_size"),
        (0, {}, ValueError, "data"),
        (Rows(3), {}, TypeError, "dataset"),
        (3, {"drop_last": True}, ValueError, "drop_last"),
        (10, {"budget": 3}, TypeError, "budget"),
        ([Stream("a", range(9)), Stream("b", range(9), enters_at=0.5)], {}, ValueError, "budget"),
        (9, {"batch_size": schedules.Ramp(8, 1.0, unit="progress", initial=4)}, ValueError, _NEEDS_A_BUDGET),
        (9, {"mixing": Hold(Scheduled([(0.0, [1.0])]), 3)}, ValueError, _NEEDS_A_BUDGET),
        (9, {"mixing": "auto"}, ValueError, "mixing"),
        (9, {"mixing": "GroupDRO"}, ValueError, "mixing"),
        ([Stream("a", range(9), loss_weight=2.0), Stream("b", range(9))], {}, ValueError, "mixing"),
        (9, {"objective": "worst"}, TypeError, "AdaptiveBatchSampler"),
    ],
)
def test_bad_input_is_refused(data: Any, options: dict[str, Any], error: type[Exception], option: str | None) -> None:
    with refused(option, kind=error):
        AdaptiveBatchSampler(data, **{"batch_size": 4, **options})
    for size, option, kind in (
        (0, "set_batch_size", ValueError),
        (1, "batch_size", ValueError),
        (2.0, "set_batch_size", TypeError),
    ):
        with refused(option, kind=kind):
            AdaptiveBatchSampler(10, 4, world_size=2, rank=0).set_batch_size(size)
