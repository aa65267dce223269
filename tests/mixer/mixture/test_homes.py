import numpy as np
import pytest
from hypothesis import given, strategies as st

from mixer.mixture.step_plan import StepPlan, rank_samples
from tests.mixer.plans import Key, all_samples, make_plan, samples_of

world_sizes = st.integers(1, 9)
spans = st.lists(st.tuples(st.integers(0, 40), st.integers(0, 2**61)), min_size=1, max_size=7)
few_spans = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 50)), min_size=1, max_size=12)
plans = st.one_of(spans, few_spans).map(lambda found: make_plan(*zip(*found, strict=True)))


def home(key: Key, world_size: int) -> int:
    stream_id, position = key
    return (position + stream_id) % world_size


def shares_of(plan: StepPlan, world_size: int, is_balanced: bool = True) -> list[list[Key]]:
    return [samples_of(plan, rank, world_size, is_balanced) for rank in range(world_size)]


def counted_out(plan: StepPlan, world_size: int) -> list[list[Key]]:
    """The rule, sample by sample: everyone at home; the fullest ranks keep one more; surplus goes rank after rank."""
    shares: list[list[Key]] = [[] for _ in range(world_size)]
    for key in all_samples(plan):
        shares[home(key, world_size)].append(key)
    least, extra = divmod(plan.total, world_size)
    fullest = sorted(range(world_size), key=lambda rank: (-len(shares[rank]), rank))
    targets = [least + (rank in fullest[:extra]) for rank in range(world_size)]
    surplus = [key for share, target in zip(shares, targets, strict=True) for key in share[target:]]
    kept = [share[:target] for share, target in zip(shares, targets, strict=True)]
    for share, target in zip(kept, targets, strict=True):
        missing = target - len(share)
        share += surplus[:missing]
        del surplus[:missing]
    return [sorted(share) for share in kept]


@pytest.mark.parametrize("is_balanced", [True, False])
@given(plan=plans, world_size=world_sizes)
def test_the_ranks_together_have_each_sample_once(is_balanced: bool, plan: StepPlan, world_size: int) -> None:
    before = plan.fingerprint()
    shares = shares_of(plan, world_size, is_balanced)
    assert sorted(key for share in shares for key in share) == all_samples(plan)
    assert all(share == sorted(share) for share in shares)
    assert samples_of(plan, 0, 1, is_balanced) == all_samples(plan)
    assert plan.fingerprint() == before


@given(plan=plans, world_size=world_sizes)
def test_position_p_of_stream_k_is_at_home_on_rank_p_plus_k(plan: StepPlan, world_size: int) -> None:
    for rank, share in enumerate(shares_of(plan, world_size, is_balanced=False)):
        assert share == [key for key in all_samples(plan) if home(key, world_size) == rank]


class TestBalanced:
    @given(plan=plans, world_size=world_sizes)
    def test_it_is_the_rule_counted_out(self, plan: StepPlan, world_size: int) -> None:
        shares = shares_of(plan, world_size)
        assert shares == counted_out(plan, world_size)
        assert max(map(len, shares)) - min(map(len, shares)) <= 1
        at_home = sorted(len(share) for share in shares_of(plan, world_size, is_balanced=False))
        least, extra = divmod(plan.total, world_size)
        targets = [least] * (world_size - extra) + [least + 1] * extra
        moved = sum(home(key, world_size) != rank for rank, share in enumerate(shares) for key in share)
        # As few change ranks as can be.
        assert moved == sum(max(load - target, 0) for load, target in zip(at_home, targets, strict=True))

    def test_golden_shares(self) -> None:
        plan = make_plan([4, 1, 2], [5, 0, 3])
        assert shares_of(plan, 3) == [[(0, 6), (2, 4)], [(0, 7), (1, 0)], [(0, 5), (0, 8), (2, 3)]]
        assert shares_of(plan, 2) == [[(0, 6), (0, 8), (2, 4)], [(0, 5), (0, 7), (1, 0), (2, 3)]]
        # Four streams whose next sample is at home on rank 0 of 3: one rank keeps two, the others get one each.
        plan = make_plan([1] * 4, [0, 2, 1, 0])
        assert shares_of(plan, 3, is_balanced=False) == [[(0, 0), (1, 2), (2, 1), (3, 0)], [], []]
        assert shares_of(plan, 3) == [[(0, 0), (1, 2)], [(2, 1)], [(3, 0)]]
        assert shares_of(make_plan([0, 0]), 3) == [[], [], []]

    @pytest.mark.parametrize("is_balanced", [True, False])
    def test_many_streams_on_many_ranks(self, is_balanced: bool) -> None:
        random = np.random.default_rng(0)
        counts = random.multinomial(16_384, random.dirichlet(np.ones(1_000)))
        plan = make_plan(counts.tolist(), random.integers(0, 2**50, 1_000).tolist())
        at_home = [[key for key in all_samples(plan) if home(key, 1_024) == rank] for rank in (5, 1_023)]
        expected = [counted_out(plan, 1_024)[rank] for rank in (5, 1_023)] if is_balanced else at_home
        assert [samples_of(plan, rank, 1_024, is_balanced) for rank in (5, 1_023)] == expected

    def test_a_share_of_few_of_very_many_samples(self) -> None:
        ids, positions = rank_samples(make_plan([2**20] * 3, [0, 1, 2]), 5, 2**20)
        assert list(zip(ids.tolist(), positions.tolist(), strict=True)) == [(0, 5), (1, 4), (2, 3)]
