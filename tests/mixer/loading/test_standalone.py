"""The batch sampler and the data loader for loops of one's own, which plan alike."""

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
from torch.utils.data import IterableDataset

from mixer import (
    AdaptiveBatchSampler,
    Decision,
    Hold,
    LossChange,
    MixingDataLoader,
    Mixture,
    Observation,
    Policy,
    Scheduled,
    Stream,
    schedules,
)
from mixer.loading.report import make_report
from mixer.mixture.clock import Budget
from mixer.schedules import BatchDecision, BatchObservation, Schedule
from tests.mixer.loaders import Noisy, Wandering, masking_collator

LENGTHS = (20, 11, 6)


def sampler_ranks(world_size: int, *args: Any, **options: Any) -> list[AdaptiveBatchSampler]:
    return [AdaptiveBatchSampler(*args, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def make_loader(num_workers: int = 0, **options: Any) -> MixingDataLoader:
    data = {f"s{k}": Noisy(k, n) for k, n in enumerate(LENGTHS)}
    defaults = {"batch_size": 9, "collate_fn": masking_collator, "num_workers": num_workers, "seed": 3}
    return MixingDataLoader(data, **{**defaults, **options})


def loader_ranks(world_size: int, **options: Any) -> list[MixingDataLoader]:
    return [make_loader(rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def rows_of(batch: dict[str, torch.Tensor]) -> list[tuple[int, ...]]:
    return [tuple(row) for row in batch["x"].tolist()]


class TestEpochs:
    @settings(max_examples=30)
    @given(
        lengths=st.lists(st.integers(8, 40), min_size=1, max_size=3),
        world_size=st.integers(1, 3),
        sizes=st.lists(st.integers(3, 8), min_size=1, max_size=20),
        drop_last=st.booleans(),
    )
    def test_every_sample_comes_once_an_epoch_whatever_the_sizes(
        self, lengths: list[int], world_size: int, sizes: list[int], drop_last: bool
    ) -> None:
        data = {f"s{k}": range(n) for k, n in enumerate(lengths)}
        samplers, asked = sampler_ranks(world_size, data, sizes[0], drop_last=drop_last), itertools.cycle(sizes)
        for epoch in range(3):
            iterators, seen = [iter(sampler) for sampler in samplers], []
            while True:
                size = next(asked)
                for sampler in samplers:
                    sampler.set_batch_size(size)
                batches = [next(iterator, None) for iterator in iterators]
                if batches[0] is None:
                    assert batches == [None] * world_size
                    break
                own = [[] if s.is_padding else batch or [] for s, batch in zip(samplers, batches, strict=True)]
                assert max(map(len, own)) - min(map(len, own)) <= 1
                assert not drop_last or sum(map(len, own)) == samplers[0].mixing.batch_size
                seen += itertools.chain(*own)
            assert [sampler.epoch for sampler in samplers] == [epoch + 1] * world_size
            if drop_last:
                assert len(seen) > sum(lengths) - 8
                assert len(lengths) > 1 or len(set(seen)) == len(seen)
            else:
                assert sorted(seen) == list(range(sum(lengths)))

    def test_the_published_example(self) -> None:
        samplers = sampler_ranks(2, 10, lambda step, batch_size: 2 + 2 * (step // 5))
        coverage: list[list[float]] = []
        for _ in range(5):
            coverage.append([])
            for _ in zip(*samplers, strict=True):
                assert samplers[0].coverage == samplers[1].coverage
                coverage[-1].append(round(samplers[0].coverage, 9))
        assert coverage == [[0.2, 0.4, 0.6, 0.8, 1], [0.4, 0.8, 1], [0.4, 0.8, 1], [0.6, 1], [0.6, 1]]

    def test_one_that_was_left_is_gone_on_with(self) -> None:
        sampler = AdaptiveBatchSampler(5, 2, shuffle=False)
        assert [next(iter(sampler)), *sampler] == [[0, 1], [2, 3], [4]]
        assert sampler.epoch == 1

    @pytest.mark.parametrize(
        ("max_epochs", "budget", "num_samples"),
        [(None, Budget(epochs=1.5), 15), (None, Budget(samples=23), 23), (None, Budget(steps=4), 14), (1.5, None, 15)],
    )
    def test_after_the_budget_or_the_streams_there_is_nothing_more(
        self, max_epochs: float | None, budget: Budget | None, num_samples: int
    ) -> None:
        sampler = AdaptiveBatchSampler([Stream("a", range(10), max_epochs=max_epochs)], 4, budget=budget)
        assert not sampler.is_finished
        assert sum(len(batch) for _ in range(5) for batch in sampler) == num_samples
        assert sampler.is_finished
        assert list(sampler) == []

    @pytest.mark.parametrize(("world_size", "micro_batch_size"), [(1, None), (3, None), (2, 2)])
    def test_loaders_of_all_ranks_together_give_every_sample_once(
        self, world_size: int, micro_batch_size: int | None
    ) -> None:
        loaders = loader_ranks(world_size, batch_size=12, micro_batch_size=micro_batch_size)
        for _ in range(2):
            seen = []
            for batches in zip(*loaders, strict=True):
                if micro_batch_size is None:
                    seen += [rows_of(b) for b, loader in zip(batches, loaders, strict=True) if not loader.is_padding]
                else:
                    assert len({len(batch) for batch in batches}) == 1
                    seen += [rows_of(micro.inputs) for batch in batches for micro in batch if not micro.is_padding]
            assert sorted(itertools.chain(*seen)) == sorted((k, i) for k, n in enumerate(LENGTHS) for i in range(n))


class TestTheVeryNextBatch:
    @pytest.mark.parametrize("num_workers", [0, 1])
    def test_has_the_size_set_by_hand(self, num_workers: int) -> None:
        loader, sizes = make_loader(num_workers), []
        for batch in loader:
            sizes.append(len(batch["x"]))
            loader.set_batch_size(None if len(sizes) == 2 else 5)
        assert sizes == [9, 5, 9, 5, 5, 4]
        assert len(loader) == 8

    def test_has_the_weights_and_the_indices_of_the_concatenation(self) -> None:
        streams = [Stream("a", torch.arange(5), weight=1), Stream("b", torch.arange(100, 120), weight=1)]
        sampler = AdaptiveBatchSampler(streams, 6, epoch_size=30)
        for number, batch in enumerate(sampler):
            values = [int(sampler.dataset[index]) for index in batch]
            assert [int(value >= 100) for value in values] == sampler.stream_ids.tolist()
            assert sorted(sampler.stream_ids.tolist()) == ([0, 0, 0, 1, 1, 1] if number < 2 else [1] * 6)
            if number == 1:
                sampler.set_weights({"a": 0, "b": 1})

    def test_follows_what_was_reported(self) -> None:
        loader, counts = make_loader(1, mixing=Follow()), []
        for batch in itertools.islice(loader, 3):
            counts.append(len(set(batch["x"][:, 0].tolist())))
            loader.observe([1.0, 0.0, 0.0] if len(counts) == 1 else [1.0, 1.0, 1.0])
        assert counts == [3, 1, 3]
        sampler, sizes = AdaptiveBatchSampler(100, schedule := Doubling()), []
        for batch in itertools.islice(sampler, 4):
            sizes.append(len(batch))
            loss = torch.tensor(0.5 if len(sizes) == 2 else 1.5, requires_grad=True)
            sampler.observe(loss, tokens=[7 * len(batch)])
        assert sizes == [2, 2, 4, 4]
        assert [seen.loss for seen in schedule.seen] == [1.5, 0.5, 1.5, 1.5]
        assert schedule.seen[-1].num_tokens == 7 * 12


class Follow(Policy):
    needs = frozenset({"loss"})

    def __init__(self, loss_weights: Any = None):
        super().__init__()
        self.loss_weights = loss_weights

    def start(self, mixture: Mixture) -> Decision:
        return Decision(mixture.weights, self.loss_weights)

    def update(self, observation: Observation) -> Decision:
        return Decision(observation.losses)


class Doubling(Schedule):
    needs = frozenset({"loss", "tokens"})

    def __init__(self) -> None:
        super().__init__(initial=2)
        self.seen: list[BatchObservation] = []

    def update(self, observation: BatchObservation) -> BatchDecision:
        self.seen.append(observation)
        return BatchDecision(observation.batch_size * (2 if observation.loss < 1.0 else 1))


class TestPadding:
    """A rank without a sample is given one that counts for nothing."""

    def test_of_samplers(self) -> None:
        samplers = sampler_ranks(3, 7, 6, shuffle=False)
        *_, last = zip(*samplers, strict=True)
        assert [sampler.is_padding for sampler in samplers].count(True) == 2
        assert {index for batch in last for index in batch} == {6}
        assert sorted(sampler.loss_scale for sampler in samplers) == [0.0, 0.0, 3.0]

    def test_of_loaders(self) -> None:
        loaders = loader_ranks(2)  # 37 samples: the last batch has one
        with pytest.raises(RuntimeError, match="there has been none yet"):
            _ = loaders[0].loss_scale
        *_, last = zip(*loaders, strict=True)
        assert rows_of(last[0]) == rows_of(last[1])
        assert sorted((loader.is_padding, loader.loss_scale) for loader in loaders) == [(False, 2.0), (True, 0.0)]

    def test_the_scales_of_micro_batches_sum_to_that_of_the_batch(self) -> None:
        loaders = loader_ranks(2, batch_size=11, micro_batch_size=2)
        for batches in zip(*loaders, strict=True):
            for loader, batch in zip(loaders, batches, strict=True):
                assert sum(map(loader.loss_scale_of, batch)) == pytest.approx(loader.loss_scale)
            assert sum(loader.loss_scale for loader in loaders) == pytest.approx(2)


def run(loader: MixingDataLoader, num_batches: int, first: int = 0) -> list[Any]:
    """What batches consist of, while the size is changed by hand before each."""
    given: list[Any] = []
    while len(given) < num_batches:
        for batch in loader:
            contents = {name: values.tolist() for name, values in batch.items()}
            given.append((contents, loader.stream_ids.tolist(), loader.coverage))
            loader.set_batch_size(3 + (first + len(given)) * 5 % 7)
            if len(given) == num_batches:
                break
    return given


class TestResuming:
    @pytest.mark.parametrize(
        ("num_workers", "drop_last"), [(0, False), (0, True), pytest.param(1, False, marks=pytest.mark.full)]
    )
    def test_a_loader_gives_what_the_uninterrupted_one_gives(self, num_workers: int, drop_last: bool) -> None:
        options = {"mixing": Wandering(), "drop_last": drop_last}
        whole, loader = run(make_loader(**options), 12), make_loader(num_workers, **options)
        start = run(loader, 5)
        state = json.loads(json.dumps(loader.state_dict()))
        run(loader, 2, first=5)  # what is loaded afterwards is no part of the state
        resumed = make_loader(num_workers, **options)
        for again in (resumed, loader):
            again.load_state_dict(state)
            assert start + run(again, 7, first=5) == whole

    @pytest.mark.parametrize("stop", [1, 5])
    def test_a_sampler_gives_what_the_uninterrupted_one_gives(self, stop: int) -> None:
        def build() -> AdaptiveBatchSampler:
            policy = LossChange(num_warmup_observations=1)
            sizes = lambda step, batch_size: 4 + step // 3  # noqa: E731
            return AdaptiveBatchSampler({"a": range(13), "b": range(9)}, sizes, mixing=policy)

        def batches(sampler: AdaptiveBatchSampler, number: int) -> Iterator[list[int]]:
            for batch in itertools.islice(itertools.chain.from_iterable(itertools.repeat(sampler)), number):
                yield batch
                step = sampler.mixing.clock.step
                sampler.observe({"a": 3.0 / (1 + step), "b": 2.0 + math.sin(step)})

        interrupted, resumed = build(), build()
        start = list(batches(interrupted, stop))
        resumed.load_state_dict(json.loads(json.dumps(interrupted.state_dict())))
        assert start + list(batches(resumed, 14 - stop)) == list(batches(build(), 14))

    def test_a_state_fits_another_number_of_ranks_and_no_other_data(self) -> None:
        (one,), two = sampler_ranks(1, 50, 6), sampler_ranks(2, 50, 6)
        list(itertools.islice(one, 3))
        for sampler in two:
            sampler.load_state_dict(json.loads(json.dumps(one.state_dict())))
        assert sorted(itertools.chain(*next(zip(*two, strict=True)))) == sorted(next(iter(one)))
        with pytest.raises(ValueError, match="load_state_dict: stream 'train': length was 50 when the run was saved"):
            AdaptiveBatchSampler(51, 6).load_state_dict(one.state_dict())
        with pytest.raises(ValueError, match="load_state_dict: it has format None"):
            one.load_state_dict({})


class TestReports:
    def test_tokens_that_are_needed_and_not_reported_are_an_error(self) -> None:
        with pytest.raises(ValueError, match=r"budget in tokens needs token counts.*observe\(tokens=\.\.\.\)"):
            list(AdaptiveBatchSampler(100, 4, budget=Budget(tokens=50)))

    def test_losses_that_are_needed_and_not_reported_are_missed_once(self, caplog: pytest.LogCaptureFixture) -> None:
        list(AdaptiveBatchSampler({"a": range(9), "b": range(9)}, 4, mixing=LossChange()))
        expected = "The mixture depends on ['losses'], which no observe(...) call has reported."
        assert [record.getMessage() for record in caplog.records] == [expected]

    def test_a_batch_is_reported_on_once(self) -> None:
        sampler = AdaptiveBatchSampler(10, 2)
        with pytest.raises(RuntimeError, match="no batch waits for a report"):
            sampler.observe(1.0)
        next(iter(sampler))
        sampler.observe(1.0)
        with pytest.raises(RuntimeError, match="no batch waits for a report"):
            sampler.observe(1.0)

    @pytest.mark.parametrize("losses", [{"b": 2.0}, [math.inf, 2.0], torch.tensor([math.nan, 2.0])])
    def test_losses_come_by_name_or_in_order(self, losses: Any) -> None:
        report = make_report(["a", "b"], {"losses": losses}, {"loss": math.nan})
        np.testing.assert_array_equal(report["losses"], [math.nan, 2.0])
        assert math.isnan(report["loss"])

    @pytest.mark.parametrize("losses", [{"c": 1.0}, [1.0], 1.0])
    def test_those_on_other_streams_are_refused(self, losses: Any) -> None:
        sampler = AdaptiveBatchSampler({"a": range(9), "b": range(9)}, 4)
        next(iter(sampler))
        with pytest.raises(ValueError, match=r"observe: losses .* \['a', 'b'\]"):
            sampler.observe(losses)


class RowStream(IterableDataset[int]):
    def __iter__(self) -> Iterator[int]:
        return iter(range(3))


NEEDS_PROGRESS = "depends on the progress of the run, which is undefined without a budget"


class TestRefusals:
    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"batch_size": 0}, ValueError, "must be at least 1 sample, got 0"),
            ({"batch_size": 2.5}, TypeError, ""),
            ({"batch_size": None}, ValueError, "batch_size=Constant has no initial size"),
            ({"batch_size": 2, "world_size": 3}, ValueError, "2 samples in all are fewer than the 3 ranks"),
            (
                {"data": 2, "world_size": 3},
                ValueError,
                "data: an epoch of 2 samples is fewer than the world_size=3 ranks",
            ),
            ({"rank": 2, "world_size": 2}, ValueError, "rank must be 0 or more and below world_size=2, got 2"),
            ({"rank": -1}, ValueError, "rank must be 0 or more and below world_size=1, got -1"),
            ({"world_size": 1.0}, TypeError, "world_size must be a whole number, got 1.0"),
            ({"data": 0}, ValueError, "data must be at least 1 sample, got 0"),
            ({"data": 2.0}, TypeError, "needs __len__ and __getitem__"),
            ({"data": {}}, ValueError, "data has no streams"),
            ({"data": RowStream()}, TypeError, "an iterable dataset cannot be indexed"),
            ({"data": 3, "drop_last": True}, ValueError, "drop_last=True leaves nothing of an epoch of 3 samples"),
            ({"budget": 3}, TypeError, r"budget must be a Budget, such as Budget\(epochs=3\), got 3"),
            (
                {"data": [Stream("b", range(9), leaves_at=0.5), Stream("c", range(9))]},
                ValueError,
                "'b' enters or leaves",
            ),
            ({"mixing": "Unifrom"}, ValueError, "Did you mean 'Uniform'"),
            ({"mixing": Hold(Scheduled([(0.0, [1.0])]), 3)}, ValueError, NEEDS_PROGRESS),
            ({"batch_size": schedules.Ramp(8, 1.0, unit="progress", initial=4)}, ValueError, NEEDS_PROGRESS),
        ],
    )
    def test_of_samplers(self, options: dict[str, Any], error: type[Exception], message: str) -> None:
        options = {"data": 10, "batch_size": 4, **options}
        with pytest.raises(error, match=message or "batch_size"):
            AdaptiveBatchSampler(**options)
        if message == NEEDS_PROGRESS:
            assert AdaptiveBatchSampler(**options, budget=Budget(epochs=2)).mixing.clock.progress == 0.0

    @pytest.mark.parametrize("batch_size", [0, 1, 2.0])
    def test_of_a_size_by_hand(self, batch_size: Any) -> None:
        with pytest.raises((ValueError, TypeError), match="set_batch_size"):
            AdaptiveBatchSampler(10, 4, world_size=2, rank=0).set_batch_size(batch_size)

    @pytest.mark.parametrize(
        ("options", "error", "message"),
        [
            ({"data": RowStream()}, TypeError, "an iterable dataset cannot be indexed.*MixingTrainer"),
            ({"micro_batch_size": 0}, ValueError, "micro_batch_size must be at least 1 sample, got 0"),
            ({"micro_batch_size": 1.5}, TypeError, "micro_batch_size must be a whole number"),
            ({"num_workers": -1}, ValueError, "num_workers must be 0 or more, got -1"),
            ({"num_workers": 1.0}, TypeError, "num_workers must be a whole number, got 1.0"),
            ({"prefetch_factor": 0}, ValueError, "prefetch_factor must be at least 1"),
            ({"persistent_workers": True}, ValueError, "persistent_workers=True needs workers"),
            ({"world_size": 5, "rank": 0}, ValueError, "4 samples in all are fewer than the 5 ranks"),
        ],
    )
    def test_of_loaders(self, options: dict[str, Any], error: type[Exception], message: str) -> None:
        with pytest.raises(error, match=message):
            MixingDataLoader(**{"data": range(9), "batch_size": 4, **options})


class TestCollating:
    def test_loss_weights_come_with_micro_batches_of_one_stream(self) -> None:
        policy = Follow(np.ones(3) * 2)
        batch = next(iter(make_loader(mixing=policy, micro_batch_size=64)))
        assert [set(micro.stream_ids) for micro in batch] == [{0}, {1}, {2}]
        message = r"Follow, or a stream.s loss_weight, weights losses by stream.*set micro_batch_size"
        with pytest.raises(ValueError, match=message):
            next(iter(make_loader(mixing=policy)))

    @pytest.mark.parametrize("num_workers", [0, 1])
    def test_it_is_that_of_a_data_loader(self, num_workers: int) -> None:
        data = [(torch.tensor([float(k)]), k) for k in range(6)]
        loader = MixingDataLoader(data, 4, shuffle=False, num_workers=num_workers, persistent_workers=bool(num_workers))
        assert len(loader) == 2
        inputs, labels = next(iter(loader))
        assert inputs.tolist() == [[0.0], [1.0], [2.0], [3.0]]
        assert labels.tolist() == [0, 1, 2, 3]
        loader.stop()

    def test_columns_that_only_some_streams_have_are_not_lost(self) -> None:
        narrow = [{"x": torch.ones(2)} for _ in range(8)]
        wide = [{"x": torch.ones(2), "y": torch.ones(1)} for _ in range(8)]
        with pytest.raises(ValueError, match=r"have different columns: only some have \['y'\]"):
            list(MixingDataLoader({"narrow": narrow, "wide": wide}, batch_size=4))
