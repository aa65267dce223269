"""What every mixing policy is: a rule from observations to weights."""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np

from mixer.policies.contract import Decision, Mixture, Observation
from mixer.policies.shared.terms import Terms, terms_of
from mixer.utils.arrays import BoolArray, FloatArray, Int64Array
from mixer.utils.kept_arguments import KeepsArguments

__all__ = [
    "BoolArray",
    "Decision",
    "FloatArray",
    "Int64Array",
    "Mixture",
    "Observation",
    "Policy",
    "Terms",
    "Unit",
    "Weights",
    "check_weights",
    "weights_array",
]

Unit = Literal["samples", "tokens"]
Weights = Mapping[str, float] | Sequence[float] | FloatArray


class Policy(KeepsArguments, ABC):
    """A mixing policy.

    It knows no model, trainer, file or global random state: only K numbers at a time. A subclass says in `needs`
    what has to be observed for it: `"loss"` (training losses), `"evaluation_loss"`, `"gradient"` (the streams'
    gradients, every `interval_steps` steps: after steps whose number is a multiple), `"gradient_variance"` (these
    with their variance, which costs more), `"excess_loss"` (training losses above those of the trainer's reference
    model), `"loss_after"` (training losses once more after each optimizer step) or `"update_norm"` (how far each step
    moves the parameters). One that never changes its first decision says so by `is_static` and is not asked again. One
    that goes by so many samples of each stream in a batch says how many in `min_samples`. One that plans mixtures only
    to see what they do says so by `plans_probes`; wrappers that would put others in their place refuse it. What it
    takes beside what is observed for it, with its default arguments, it says in words in `own_cost`.

    Args:
        unit: Whether the weights are shares of samples or of tokens.

    Raises:
        ValueError: If the unit is another word.
    """

    needs: frozenset[str] = frozenset()
    is_static: bool = False
    interval_steps: int = 1
    min_samples: int = 0
    plans_probes: bool = False
    own_cost: str = ""

    def __init__(self, *, unit: Unit = "samples"):
        if unit not in ("samples", "tokens"):
            raise ValueError(f"unit must be 'samples' or 'tokens', got {unit!r}.")
        self.unit: Unit = unit

    @property
    def name(self) -> str:
        """What the policy is called in checkpoints and ledgers."""
        return type(self).__name__

    @abstractmethod
    def start(self, mixture: Mixture) -> Decision:
        """Forgets any earlier run and decides for the first step.

        Args:
            mixture: The streams of the run.

        Returns:
            The decision for step 0.
        """

    @abstractmethod
    def update(self, observation: Observation) -> Decision:
        """Decides for the next step.

        Args:
            observation: What the last step showed.

        Returns:
            The decision for step `observation.step`.
        """

    def explain(self) -> Terms:
        """Gives the terms of the last decision, for `mixer explain`.

        Returns:
            `[num_streams]` or one number each, by name; without a method of the policy's own, what `state_dict` holds.
        """
        return terms_of(self.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Gives everything that `update` remembers, as plain data that JSON can hold.

        Returns:
            The state; empty for a policy that remembers nothing.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Takes up a saved state, after `start`.

        Args:
            state: What `state_dict` gave.

        Raises:
            ValueError: If the state is of a policy that remembers other things.
        """
        own = sorted(self.state_dict())
        if sorted(state) != own:
            raise ValueError(f"{type(self).__name__} remembers {own}, but the saved policy state has {sorted(state)}.")


def weights_array(weights: Weights, names: Sequence[str], where: str) -> FloatArray:
    """Checks weights and brings them into the order of the streams.

    Args:
        weights: One weight a stream: by name or in order.
        names: Names of the streams.
        where: What to call the weights in an error, such as `"mixing"`.

    Returns:
        float64 `[num_streams]`, as given (not normalised).

    Raises:
        ValueError: If names or the length do not fit, or a weight is negative, not finite, or all are 0.
    """
    if isinstance(weights, Mapping):
        missing, unknown = [n for n in names if n not in weights], [n for n in weights if n not in names]
        if missing or unknown:
            raise ValueError(
                f"{where}: weights must name each of the streams {list(names)} once; "
                f"missing: {missing}, unknown: {unknown}."
            )
        weights = [weights[name] for name in names]
    try:
        array = np.asarray(weights, dtype=np.float64)
    except (TypeError, ValueError):
        raise ValueError(f"{where}: weights must be numbers, got {weights!r}.") from None
    if array.shape != (len(names),):
        raise ValueError(
            f"{where}: expected {len(names)} weights, one for each of {list(names)}, got shape {list(array.shape)}: "
            f"{reprlib.repr(weights)}."
        )
    check_weights(array, names, where)
    return array


def check_weights(weights: FloatArray, names: Sequence[str], where: str) -> None:
    """Refuses weights that no mixture can have.

    Args:
        weights: `[num_streams]`.
        names: Names of the streams.
        where: What to call the weights in an error.

    Raises:
        ValueError: If a weight is negative or not finite, or all are 0.
    """
    # One comparison for the usual case: NaN fails it, and so do a negative weight, an infinite one, and zeros alone.
    if weights.min() >= 0.0 and 0.0 < weights.sum() < np.inf:
        return
    for name, weight in zip(names, weights, strict=True):
        if not (np.isfinite(weight) and weight >= 0):
            raise ValueError(f"{where}: weights must be finite and 0 or more, but {name!r} has {weight}.")
    raise ValueError(f"{where}: the weights of all streams are 0 (or overflow); at least one must be positive.")
