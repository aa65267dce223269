"""Names of a rule's state that are no attributes: refused before the first step, not at the first checkpoint."""

import numpy as np
import pytest

from mixer import Decision, Mixture, Observation, Policy
from mixer.mixture.weights import MixtureWeights
from mixer.utils.errors import InvalidTypeError
from tests.refusals import refused

MIXTURE = Mixture(("a", "b"), num_samples=np.array([5, 5]), weights=np.array([0.5, 0.5]))


class Own(Policy):
    def start(self, mixture: Mixture) -> Decision:
        self.average = 1.0
        return Decision(mixture.weights)

    def update(self, observation: Observation) -> Decision:
        return Decision(observation.weights)


@pytest.mark.parametrize("remembered", ["average", ("avrage",)])
def test_a_name_that_start_does_not_set_is_refused(remembered: tuple[str, ...]) -> None:
    kind = type("Other", (Own,), {"remembered": remembered})
    with refused("remembered", kind=InvalidTypeError):
        MixtureWeights(kind(), MIXTURE)


def test_names_that_start_sets_are_taken() -> None:
    kind = type("Other", (Own,), {"remembered": ("average",)})
    assert MixtureWeights(kind(), MIXTURE).policy.state_dict() == {"average": 1.0}
