"""The order of streams whose neighbours have similar lengths."""

import json
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st
from transformers.trainer_pt_utils import get_length_grouped_indices

from mixer import Stream
from mixer.mixture.clock import Budget, Clock
from mixer.mixture.controller import Mixing
from mixer.mixture.cursors import ShuffledOrder
from mixer.mixture.length_order import LengthGroups, LengthOrder
from mixer.mixture.permutation import Permutation
from mixer.mixture.planner import Planner
from mixer.policies import Fixed
from tests.refusals import refused


def order_of(lengths: np.ndarray, size: float, key: int = 7, is_alone: bool = False) -> LengthOrder:
    return LengthOrder(Permutation(len(lengths), key), len(lengths), size, lengths.__getitem__, 3, is_alone)


def padded_share(lengths: np.ndarray, size: int) -> float:
    batches = np.split(lengths, range(size, len(lengths), size))
    return float(1 - lengths.sum() / sum(batch.max() * len(batch) for batch in batches))


@given(
    num_samples=st.integers(1, 300),
    size=st.floats(0.01, 40.0),
    key=st.integers(-(2**63), 2**63 - 1),
    is_alone=st.booleans(),
)
def test_every_epoch_has_each_sample_once_wherever_it_is_read_and_its_inverse_finds_it(
    num_samples, size, key, is_alone
) -> None:
    lengths = np.random.default_rng(num_samples).integers(1, 50, num_samples)
    new = partial(order_of, lengths, size, key, is_alone)
    whole = new().read(range(3 * num_samples)).reshape(3, num_samples)
    assert (np.sort(whole, axis=1) == np.arange(num_samples)).all()
    some = np.arange(0, 3 * num_samples, 7)[::-1]
    assert np.array_equal(new().read(some), whole.ravel()[some])
    for epoch in range(3):
        positions = new().positions(np.arange(num_samples), epoch)
        assert np.array_equal(whole.ravel()[positions], np.arange(num_samples))


@pytest.mark.parametrize("size", [1e-22, 5e-324])
def test_a_stream_of_next_to_no_weight_is_drawn_when_it_gets_more(size: float) -> None:
    assert sorted(order_of(np.arange(9), size).read(range(9, 18))) == [*range(9)]


@pytest.mark.parametrize("size", [8, 64])
def test_steps_of_one_stream_have_as_little_padding_as_by_the_trainer(size: int) -> None:
    lengths = np.exp(np.random.default_rng(0).uniform(np.log(8), np.log(1024), 200 * size)).astype(np.int64)
    theirs = get_length_grouped_indices(lengths.tolist(), size, generator=torch.Generator().manual_seed(0))
    own = order_of(lengths, size, is_alone=True).read(range(len(lengths)))
    assert padded_share(lengths[own], size) < 1.05 * padded_share(lengths[np.array(theirs)], size)
    by_step = lengths[own][: 150 * size].reshape(-1, size).mean(axis=1)
    assert abs(np.corrcoef(by_step, np.arange(len(by_step)) % 100)[0, 1]) < 0.5  # not from long to short


@pytest.mark.parametrize("shares", [(0.5, 0.3, 0.2), (1 / 3, 1 / 3, 1 / 3)])
def test_steps_of_several_streams_have_samples_of_similar_length_in_each_of_their_epochs(shares) -> None:
    random, sizes = np.random.default_rng(0), (1_000, 2_000, 5_000)
    lengths = [np.exp(random.uniform(np.log(8), np.log(1024), size)).astype(np.int64) for size in sizes]
    streams = [Stream(f"s{k}", range(size)) for k, size in enumerate(sizes)]
    theirs = get_length_grouped_indices(np.concatenate(lengths).tolist(), 32)
    by_trainer = padded_share(np.concatenate(lengths)[np.array(theirs)], 32)
    groups = LengthGroups(32, {k: own.__getitem__ for k, own in enumerate(lengths)})
    clock = Clock(batch_size=32, epoch_size=8_000, budget=Budget(steps=10**9))
    mixing = Mixing(Planner(streams, seed=0, length_groups=groups), Fixed(list(shares)), clock)
    steps = []
    for _ in range(150):  # the first stream has up to three epochs
        plan = mixing.next_plan()
        parts = mixing.planner.rank_share(plan, 0, 1)
        steps.append(np.concatenate([lengths[part.stream_id][part.indices] for part in parts]))
        mixing.observe(plan, plan.counts)
    # 0.6 where each stream has turns of its own; short epochs, and rows that counts draw a step early, cost the rest.
    assert padded_share(np.concatenate(steps), 32) < by_trainer + 0.12
    state = json.loads(json.dumps(mixing.planner.state_dict()))
    resumed = Mixing(Planner(streams, seed=0, length_groups=groups), Fixed([0.4, 0.3, 0.3]), clock).planner
    resumed.load_state_dict(state)
    assert resumed.state_dict() == state
    for one, other in zip(resumed.cursors, mixing.planner.cursors, strict=True):
        assert np.array_equal(one.references(range(900, 1_100)), other.references(range(900, 1_100)))


def test_only_lengths_that_are_needed_are_read() -> None:
    asked: list[int] = []

    def read(indices: np.ndarray) -> np.ndarray:
        asked.extend(indices.tolist())
        return indices

    order = LengthOrder(Permutation(100_000, 1), 100_000, 8, read, 1)
    order.read(range(5))
    order.read(range(3, 400))
    assert len(asked) == 100 * 8


def test_a_resumed_stream_goes_on_in_its_own_groups_and_refuses_to_begin_or_end_them() -> None:
    lengths = np.arange(200) * 37 % 200
    new = partial(ShuffledOrder, Stream("a", range(200)), 0)
    saved, resumed, plain = new(8, lengths.__getitem__), new(16, lengths.__getitem__), new()
    assert resumed.load_state_dict(saved.state_dict(30)) == 30
    assert resumed.references(range(30, 230)).tolist() == saved.references(range(30, 230)).tolist()
    for order, state in ((plain, saved.state_dict(30)), (saved, plain.state_dict(30))):
        with refused("train_sampling_strategy"):
            order.load_state_dict(state)
        order.load_state_dict(state, allow_inexact=True)
