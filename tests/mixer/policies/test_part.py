from dataclasses import fields, replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mixer.policies import Mixture, Observation
from mixer.policies.shared.part import part_of_mixture, part_of_observation
from tests.mixer.policies.gradients import measured

MIXTURE = Mixture(("a", "b", "c", "d"), np.array([1, 2, 3, 4]), np.array([0.1, 0.2, 0.3, 0.4]), (1, 3), False)
WHOLE = replace(
    measured([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [2, 4, 6], losses=[0.1, 0.2, 0.3], step=7),
    tokens=np.array([20, 40, 60]),
    evaluation_losses=np.array([0.4, 0.5, np.nan]),
    shares=np.array([0.5, 0.3, 0.2]),
    batch_size=10,
    excess_losses=np.array([0.7, np.nan, 0.9]),
    losses_after=np.array([0.05, 0.15, 0.25]),
    update_norm=0.25,
    active=np.array([True, True, False]),
    tokens_per_sample=np.array([10.0, 10.0, 10.0]),
)


class TestMixture:
    def test_has_its_streams_numbered_anew(self) -> None:
        part = part_of_mixture(replace(MIXTURE, active=np.array([True, True, True, False])), [0, 2, 3])
        assert part.active.tolist() == part.is_active.tolist() == [True, True, False]
        assert part_of_mixture(MIXTURE, [0, 2, 3]).is_active.tolist() == [True, True, True]
        assert part.names == ("a", "c", "d")
        assert part.num_samples.tolist() == [1, 3, 4]
        np.testing.assert_allclose(part.weights, [0.125, 0.375, 0.5])
        assert part.memories == (2,)
        assert not part.has_weights

    def test_streams_of_weight_0_alone_are_no_mixture(self) -> None:
        with pytest.raises(ValueError, match=r"the weights of \['a', 'c'\] are all 0; give at least one"):
            part_of_mixture(replace(MIXTURE, weights=np.array([0.0, 0.5, 0.0, 0.5])), [0, 2])


class TestObservation:
    def test_has_the_numbers_of_its_streams(self) -> None:
        part = part_of_observation(WHOLE, [2, 0])
        assert part.counts.tolist() == [6, 2]
        assert part.tokens.tolist() == [60, 20]
        assert part.seen.tolist() == [42, 14]
        assert part.losses.tolist() == [0.3, 0.1]
        np.testing.assert_array_equal(part.evaluation_losses, [np.nan, 0.4])
        np.testing.assert_array_equal(part.excess_losses, [0.9, 0.7])
        np.testing.assert_array_equal(part.losses_after, [0.25, 0.05])
        np.testing.assert_allclose(part.weights, [0.75, 0.25])
        np.testing.assert_allclose(part.shares, [2 / 7, 5 / 7])
        assert part.gradients.squared_norm.tolist() == [3.0, 1.0]
        assert (part.step, part.progress, part.update_norm) == (7, 0.0, 0.25)
        assert part.active.tolist() == [False, True]
        assert part.batch_size == 7

    def test_all_streams_are_the_whole(self) -> None:
        part = part_of_observation(WHOLE, [0, 1, 2])
        for field in fields(Observation):
            if field.name != "gradients":
                np.testing.assert_allclose(getattr(part, field.name), getattr(WHOLE, field.name), err_msg=field.name)

    def test_what_was_not_observed_stays_so(self) -> None:
        bare = replace(WHOLE, evaluation_losses=None, gradients=None, shares=None, batch_size=None)
        bare = replace(bare, excess_losses=None, losses_after=None, active=None, tokens_per_sample=None)
        part = part_of_observation(bare, [0, 1])
        assert part.excess_losses is part.losses_after is part.active is part.tokens_per_sample is None
        assert part.evaluation_losses is part.gradients is part.shares is part.batch_size is None

    @given(shares=st.lists(st.integers(0, 50), min_size=3, max_size=3).filter(any), batch_size=st.integers(1, 10**6))
    def test_the_batch_size_is_the_part_that_was_asked_of_them(self, shares: list[int], batch_size: int) -> None:
        whole = replace(WHOLE, shares=np.array(shares) / sum(shares), batch_size=batch_size)
        asked = part_of_observation(whole, [0, 2]).batch_size
        exact = batch_size * (shares[0] + shares[2]) // sum(shares)
        assert asked == max(1, exact)

    def test_without_shares_weights_say_what_was_asked(self) -> None:
        assert part_of_observation(replace(WHOLE, shares=None, batch_size=12), [0, 1]).batch_size == 6

    def test_shares_of_tokens_are_turned_into_the_samples_that_were_asked_for(self) -> None:
        # (0.5/10, 0.3/2, 0.2/4) = (1, 3, 1)/20: three fifths of 100 samples.
        whole = replace(WHOLE, tokens_per_sample=np.array([10.0, 2.0, 4.0]), batch_size=100)
        part = part_of_observation(whole, [1])
        assert part.batch_size == 60
        assert part.tokens_per_sample.tolist() == [2.0]

    def test_streams_that_had_nothing_have_equal_weights_and_no_shares(self) -> None:
        by_hand = replace(WHOLE, weights=np.array([0.0, 1.0, 0.0]), shares=np.array([0.0, 1.0, 0.0]))
        part = part_of_observation(by_hand, [0, 2])
        assert part.weights.tolist() == [0.5, 0.5]
        assert part.shares.tolist() == [0.0, 0.0]
        assert part.batch_size == 1
