"""Options of the gradient probe: which steps are measured, and how."""

from dataclasses import dataclass
from typing import Literal, NamedTuple

from transformers.utils import logging

from mixer.measurements import probe_requests
from mixer.policies.contract import Policy
from mixer.schedules.base import Schedule
from mixer.utils.errors import require, wrong_type, wrong_value
from mixer.utils.recorded_arguments import names_arguments

logger = logging.get_logger(__name__)


@names_arguments
@dataclass(frozen=True)
class Probing:
    """Options for measuring per-stream gradients; see `GradientProbe`.

    Args:
        interval_steps: Measures every so many steps, for ledger and log; `None` measures only for the policy or the
            batch-size schedule.
        mode: `"exact"`, `"sketch"`, or `"auto"`: exact if one rank has one micro-batch, else a sketch.
        variance: Whether to measure the variance over samples too; `None` does so if the policy or the schedule needs
            it.
        layers: Name patterns of the layers to read; `None` for all.
        homogeneous: Whether micro-batches contain one stream each, so that layers of any kind can be read.
        exact_accumulate: Whether `"exact"` covers several micro-batches and ranks; needs memory for one copy of the
            parameters per stream.
        sketch_size: Maximum rows and columns of each parameter's projection.

    Raises:
        ValueError: If a value is outside its range.
    """

    interval_steps: int | None = None
    mode: Literal["auto", "exact", "sketch"] = "auto"
    variance: bool | None = None
    layers: list[str] | None = None
    homogeneous: bool = False
    exact_accumulate: bool = False
    sketch_size: int = 64

    def __post_init__(self) -> None:
        if self.interval_steps is not None and not _is_count(self.interval_steps):
            raise wrong_value(
                "probe.interval_steps", f"must be a whole number of at least 1, or None, got {self.interval_steps!r}."
            )
        require(self.mode in ("auto", "exact", "sketch"), "probe.mode", "'auto', 'exact' or 'sketch'", self.mode)
        require(_is_count(self.sketch_size), "probe.sketch_size", "a whole number of at least 1", self.sketch_size)
        if isinstance(self.layers, str):
            raise wrong_value(
                "probe.layers", f"must be a list of patterns, got the text {self.layers!r}: write [{self.layers!r}]."
            )
        if self.layers is not None and not self.layers:
            raise wrong_value("probe.layers", "must be a list of patterns, got an empty one; None for all layers.")

    @property
    def needs_one_micro_batch(self) -> bool:
        """Whether a measured step must run in one micro-batch on one rank."""
        return self.mode == "exact" and not self.exact_accumulate


class ProbedSteps(NamedTuple):
    """The steps of a run whose gradients are measured, and how.

    Attributes:
        options: Options of the probe.
        intervals: Steps that are a multiple of one of these are measured.
        variance: Whether the variance over samples is measured.
    """

    options: Probing
    intervals: tuple[int, ...]
    variance: bool


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def resolve_probing(options: Probing | None, policy: Policy, schedule: Schedule, world_size: int) -> ProbedSteps | None:
    """Determines whether a run measures gradients, and how often.

    Args:
        options: The user's options, or `None`.
        policy: The policy.
        schedule: The batch-size schedule; on several ranks it needs no probe, because the ranks' gradients differ by
            the noise.
        world_size: Number of ranks.

    Returns:
        The steps that anyone needs measured; `None` if nobody does.

    Raises:
        ValueError: If the options exclude a required measurement.
        TypeError: If the options are no `Probing`.
    """
    if options is not None and not isinstance(options, Probing):
        raise wrong_type("probe", f"must be a Probing, such as Probing(interval_steps=10), got {options!r}.")
    probing = options or Probing()
    needs = {
        f"mixing={policy.name}": probe_requests(policy.needs, world_size),
        f"batch_size={schedule.name}": probe_requests(schedule.needs, world_size),
    }
    requests = [request for own in needs.values() for request in own]
    option = () if probing.interval_steps is None else (probing.interval_steps,)
    intervals = {*option, *(request.interval_steps for request in requests)}
    if not intervals:
        if options is not None:
            logger.warning(
                "probe is set, but neither mixing=%s nor batch_size=%s needs gradients, so none are measured: set "
                "probe.interval_steps to get them in the ledger and the log.",
                *(policy.name, schedule.name),
            )
        return None
    who = [name for name, own in needs.items() if any(request.variance for request in own)]
    if who and probing.variance is False:
        raise wrong_value("probe.variance", f"=False, but {who[0]} needs the variance: leave it at None.")
    variance = bool(who) or not requests if probing.variance is None else probing.variance
    return ProbedSteps(probing, tuple(sorted(intervals)), variance)
