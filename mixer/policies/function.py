"""A policy from a plain function."""

from collections.abc import Callable

import numpy as np

from mixer.policies.contract import Decision, Mixture, Observation, Policy, Unit, Weights, weights_array
from mixer.utils.arrays import FloatArray
from mixer.utils.errors import wrong_type
from mixer.utils.validation import check_takes

WeightFunction = Callable[[int, FloatArray], Weights]


class Function(Policy):
    """Calls a user's function before every step: `f(step, weights) -> weights`.

    Args:
        function: Takes the number of completed steps and the last weights `[num_streams]` (at step 0 the streams' own),
            and returns weights by name or in order, with any sum.
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        TypeError: If it is not callable with these arguments.
        ValueError: During the run, if the returned weights are not valid; the error names the step.
    """

    def __init__(self, function: WeightFunction, *, unit: Unit = "samples"):
        super().__init__(unit=unit)
        if not callable(function):
            raise wrong_type("function", f"must be callable as f(step, weights), got {type(function).__name__}.")
        check_takes(function, ("step", "weights"), "mixing")
        self.function = function

    def start(self, mixture: Mixture) -> Decision:
        """Calls the function for step 0; see `Policy.start`."""
        self._mixture = mixture
        return self._call(0, mixture.weights)

    def update(self, observation: Observation) -> Decision:
        """Calls the function for the next step, unless the run is over; see `Policy.update`."""
        if observation.progress >= 1.0:
            return Decision(observation.weights)
        return self._call(observation.step, observation.weights)

    def _call(self, step: int, weights: FloatArray) -> Decision:
        # A copy: a function that writes into its argument must not change what was recorded.
        where = f"mixing function at step {step}"
        result = weights_array(self.function(step, np.array(weights)), self._mixture.names, where)
        return Decision(result / result.sum())
