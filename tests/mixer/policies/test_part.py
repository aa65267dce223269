from dataclasses import replace
from typing import Any

import numpy as np
from hypothesis import given, strategies as st

from mixer.measurements import GradientNorm, Gradients, Loss
from mixer.policies import Mixture
from mixer.policies.shared.part import part_of_mixture, part_of_observation
from tests.mixer.kinds import KINDS
from tests.mixer.policies.observed import NAN, measured
from tests.refusals import refused

MIXTURE = Mixture(("a", "b", "c", "d"), np.array([1, 2, 3, 4]), np.array([0.1, 0.2, 0.3, 0.4]), (1, 3), False)
SHOWN: dict[str, Any] = {"losses": [0.1, 0.2, 0.3], "evaluation_losses": [0.4, 0.5, NAN], "shares": [0.5, 0.3, 0.2]}
SHOWN |= {"step": 7, "batch_size": 10}
SHOWN |= {"gradient_norm": 0.25, "active": np.array([True, True, False]), "tokens_per_sample": np.full(3, 10.0)}
WHOLE = measured([1.0, 2.0, 3.0], [4.0, 5.0, 6.0], [2, 4, 6], **SHOWN)


class TestMixture:
    def test_has_its_streams_numbered_anew(self) -> None:
        part = part_of_mixture(replace(MIXTURE, active=np.array([True, True, True, False])), [0, 2, 3])
        assert part.active.tolist() == part.is_active.tolist() == [True, True, False]
        assert part_of_mixture(MIXTURE, [0, 2, 3]).is_active.tolist() == [True, True, True]
        assert (part.names, part.memories, part.has_weights) == (("a", "c", "d"), (2,), False)
        assert part.num_samples.tolist() == [1, 3, 4]
        np.testing.assert_allclose(part.weights, [0.125, 0.375, 0.5])

    def test_streams_of_weight_0_alone_are_no_mixture(self) -> None:
        with refused("weights"):
            part_of_mixture(replace(MIXTURE, weights=np.array([0.0, 0.5, 0.0, 0.5])), [0, 2])


class TestObservation:
    def test_has_the_numbers_of_its_streams(self) -> None:
        without = part_of_observation(replace(WHOLE, shares=None, active=None, measured={Loss: None}), [0, 1])
        assert (without.shares, without.active, without[Loss], without[Gradients]) == (None, None, None, None)
        part = part_of_observation(WHOLE, [2, 0])
        expected: dict[str, Any] = {"counts": [6, 2], "tokens": [60, 20], "seen": [42, 14], "losses": [0.3, 0.1]}
        expected |= {"evaluation_losses": [NAN, 0.4]}
        expected |= {"weights": [0.75, 0.25], "shares": [2 / 7, 5 / 7], "active": [False, True]}
        for name, values in expected.items():
            found = part[KINDS[name]] if name in KINDS else getattr(part, name)
            np.testing.assert_allclose(found, values, rtol=1e-14, err_msg=name)
        assert part[Gradients].squared_norm.tolist() == [3.0, 1.0]
        assert (part.step, part.progress, part[GradientNorm], part.batch_size) == (7, 0.0, 0.25, 7)

    @given(shares=st.lists(st.integers(0, 50), min_size=3, max_size=3).filter(any), batch_size=st.integers(1, 10**6))
    def test_the_batch_size_is_the_part_that_was_asked_of_them(self, shares: list[int], batch_size: int) -> None:
        whole = replace(WHOLE, shares=np.array(shares) / sum(shares), batch_size=batch_size)
        exact = batch_size * (shares[0] + shares[2]) // sum(shares)
        assert part_of_observation(whole, [0, 2]).batch_size == max(1, exact)

    def test_without_shares_weights_say_what_was_asked_and_shares_of_tokens_are_turned_into_samples(self) -> None:
        assert part_of_observation(replace(WHOLE, shares=None, batch_size=12), [0, 1]).batch_size == 6
        # (0.5/10, 0.3/2, 0.2/4) = (1, 3, 1)/20: three fifths of 100 samples.
        whole = replace(WHOLE, tokens_per_sample=np.array([10.0, 2.0, 4.0]), batch_size=100)
        part = part_of_observation(whole, [1])
        assert (part.batch_size, part.tokens_per_sample.tolist()) == (60, [2.0])

    def test_streams_that_had_nothing_have_equal_weights_and_no_shares(self) -> None:
        by_hand = replace(WHOLE, weights=np.array([0.0, 1.0, 0.0]), shares=np.array([0.0, 1.0, 0.0]))
        part = part_of_observation(by_hand, [0, 2])
        assert (part.weights.tolist(), part.shares.tolist(), part.batch_size) == ([0.5, 0.5], [0.0, 0.0], 1)
