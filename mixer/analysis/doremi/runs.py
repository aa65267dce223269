"""The runs of DoReMi: a reference model and a proxy, which gives the weights."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from mixer.analysis.steps import Step, finish
from mixer.measurements import ExcessLoss, asked
from mixer.policies.contract import Policy, weights_array
from mixer.policies.doremi import DoReMi
from mixer.policies.registry import as_policy
from mixer.policies.shared.wrapper import Wrapper
from mixer.trainer.trainer import MixingTrainer

POLICY = DoReMi.__name__  # the default policy of the proxy


def find_weights(make: Callable[[str, Mapping[str, Any]], Step]) -> dict[str, Any]:
    """Trains the reference and the proxy, unless they are finished; all ranks must call it.

    Args:
        make: Makes the run `"reference"` or `"proxy"`, with changes of fields of its recipe.

    Returns:
        `weights`, the proxy's average weights by stream (they sum to 1), and their `unit`, samples or tokens.

    Raises:
        ValueError: If the proxy's policy does not average weights, or needs no reference model, or a run was started
            with another recipe.
    """
    reference = make("reference", {})
    proxy = make("proxy", {"reference_model": str(reference.folder)})
    _check_policy(POLICY if proxy.recipe.mixing is None else proxy.recipe.mixing)
    finish(reference)
    return finish(proxy, _weights)


def averaged_weights(policy: Policy, names: Sequence[str]) -> dict[str, float]:
    """Returns the weights that a policy had on average, by stream; they sum to 1.

    Args:
        policy: A policy with a property `averaged_weights` (by name, or in the order of the streams), such as `DoReMi`,
            or a wrapper of one.
        names: Names of the streams.

    Raises:
        ValueError: If the weights do not fit these streams.
    """
    inner: Any = _unwrapped(policy)
    weights = weights_array(inner.averaged_weights, names, f"{inner.name}.averaged_weights")
    return dict(zip(names, (weights / weights.sum()).tolist(), strict=True))


def _weights(trainer: MixingTrainer) -> dict[str, Any]:
    policy = trainer.mixing.policy
    return {"weights": averaged_weights(policy, trainer.mixing.names), "unit": policy.unit}


def _unwrapped(policy: Policy) -> Policy:
    while isinstance(policy, Wrapper):
        policy = policy.policy
    return policy


def _check_policy(mixing: Any) -> None:
    policy = as_policy(mixing)
    if not hasattr(type(_unwrapped(policy)), "averaged_weights"):
        raise ValueError(
            f"mixing: {policy.name} does not average its weights over the run, as the proxy's policy must. Use "
            f"--mixing {POLICY}, or another policy with averaged_weights."
        )
    if not asked(policy.needs, ExcessLoss):
        raise ValueError(
            f"mixing: {policy.name} with these arguments needs no reference model (reference_losses replaces it). "
            "Remove that argument, or train this recipe alone with mixer train."
        )
