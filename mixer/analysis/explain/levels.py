"""The levels of a policy: an inner one and the wrappers around it, each with what it decided last."""

from collections.abc import Sequence
from dataclasses import dataclass

from mixer.policies import Policy, Wrapper
from mixer.policies.contract import Decision, Mixture, Observation, Terms


@dataclass(frozen=True)
class Level:
    """What one policy of a nest of them decided.

    Args:
        name: Its name, without those inside.
        names: Names of the streams that it sees: all but the memories, where those are ruled by another one.
        decision: Its decision, as it gave it.
        terms: What that came of; see `Policy.explain`.
    """

    name: str
    names: Sequence[str]
    decision: Decision
    terms: Terms


class _Watched(Wrapper):
    """Passes a policy's decisions on, and keeps the last one."""

    keeps_probes = True

    def __init__(self, policy: Policy):
        super().__init__(policy)
        self.is_static = policy.is_static
        self.names: tuple[str, ...] = ()
        self.last: Decision | None = None

    @property
    def name(self) -> str:
        """The policy's own name."""
        return self.policy.name

    def start(self, mixture: Mixture) -> Decision:
        """Keeps the first decision; see `Policy.start`."""
        self.names, self.last = mixture.names, super().start(mixture)
        self.is_static = self.policy.is_static  # some know only now
        return self.last

    def update(self, observation: Observation) -> Decision:
        """Keeps the decision; see `Policy.update`."""
        self.last = super().update(observation)
        return self.last


def watched(policy: Policy) -> Policy:
    """Has a policy, and those inside it, keep what they decide.

    Args:
        policy: The policy, which is changed.

    Returns:
        What decides as it does; `levels_of` tells what each level did.
    """
    inner = getattr(policy, "policy", None)
    if isinstance(inner, Policy):
        policy.policy = watched(inner)  # type: ignore[attr-defined]
    return _Watched(policy)


def levels_of(policy: Policy) -> list[Level]:
    """Tells what each level decided last.

    Args:
        policy: What `watched` gave.

    Returns:
        The levels, the innermost first.
    """
    own = policy.policy if isinstance(policy, _Watched) else policy
    inner = getattr(own, "policy", None)
    levels = levels_of(inner) if isinstance(inner, Policy) else []
    if isinstance(policy, _Watched) and policy.last is not None:
        levels.append(Level(type(own).__name__, policy.names, policy.last, own.explain()))
    return levels
