"""Which steps of a run have their gradients measured, and how."""

from dataclasses import dataclass
from typing import Literal

from transformers import TrainingArguments
from transformers.utils import logging

from mixer.mixture.batch_size import BatchSize
from mixer.mixture.stream import Stream, describe
from mixer.policies import Policy
from mixer.schedules import Schedule

logger = logging.get_logger(__name__)


@dataclass(frozen=True)
class Probing:
    """How the gradients of the streams are measured; see `GradientProbe`.

    Args:
        interval_steps: Measures after steps whose number is a multiple of it, for ledger and log; `None` only where
            the policy or the batch-size schedule needs it.
        mode: `"exact"`, `"sketch"`, or `"auto"`: exact where one rank has one micro-batch, else a sketch.
        variance: Whether to measure the samples' variance too; `None` does where the policy or the schedule needs it.
        layers: Patterns of names of the layers to read; `None` for all.
        homogeneous: Whether micro-batches are of one stream each, so that layers of any kind can be read.
        exact_accumulate: Whether `"exact"` goes over several micro-batches and ranks, for the memory of so many times
            the parameters as there are streams.
        sketch_size: Rows and columns of each parameter's projection, at most.

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
            raise ValueError(
                f"probe.interval_steps must be a whole number of at least 1, or None, got {self.interval_steps!r}."
            )
        if self.mode not in ("auto", "exact", "sketch"):
            raise ValueError(f"probe.mode must be 'auto', 'exact' or 'sketch', got {self.mode!r}.")
        if not _is_count(self.sketch_size):
            raise ValueError(f"probe.sketch_size must be a whole number of at least 1, got {self.sketch_size!r}.")
        if isinstance(self.layers, str):
            raise ValueError(
                f"probe.layers must be a list of patterns, got the text {self.layers!r}: write [{self.layers!r}]."
            )
        if self.layers is not None and not self.layers:
            raise ValueError("probe.layers must be a list of patterns, got an empty one; None for all layers.")

    @property
    def needs_one_micro_batch(self) -> bool:
        """Whether only steps can be measured that one rank does in one micro-batch."""
        return self.mode == "exact" and not self.exact_accumulate


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def exact_refusal(reason: str) -> ValueError:
    """Gives the error of an exact probe that would have to multiply parts of a gradient.

    Args:
        reason: What makes the parts.

    Returns:
        The error.
    """
    return ValueError(
        f"probe.mode='exact' measures the gradient of one micro-batch on one rank, but {reason}. Use 'auto' or "
        "'sketch', or exact_accumulate=True, which holds the parameters as many times as there are streams."
    )


def resolve_probing(
    options: Probing | None, policy: Policy, schedule: Schedule, world_size: int
) -> tuple[Probing, tuple[int, ...], bool] | None:
    """Finds out whether a run measures gradients, and how often.

    Args:
        options: What the user says, or `None`.
        policy: The policy.
        schedule: The batch-size schedule; on several ranks it needs no probe, for these differ by the noise.
        world_size: Number of ranks.

    Returns:
        The options, the numbers of steps from a measurement to the next of those who want to know, and whether the
        samples' variance is measured; `None` if nobody wants to know.

    Raises:
        ValueError: If something is needed that the options leave out.
        TypeError: If the options are none.
    """
    if options is not None and not isinstance(options, Probing):
        raise TypeError(
            f"probe must be a Probing, such as Probing(interval_steps=10), got a {type(options).__name__}: {options!r}."
        )
    given = options or Probing()
    needs: dict[str, tuple[int, bool]] = {}  # by who needs it: how often, and whether with the variance
    if policy.needs & {"gradient", "gradient_variance"}:
        needs[f"mixing={policy.name}"] = policy.interval_steps, "gradient_variance" in policy.needs
    if "gradient_noise" in schedule.needs and world_size == 1:
        needs[f"batch_size={schedule.name}"] = schedule.interval_steps, True
    own = () if given.interval_steps is None else (given.interval_steps,)
    intervals = {*own, *(interval for interval, _ in needs.values())}
    if not intervals:
        if options is not None:
            logger.warning(
                "probe is given, but neither mixing=%s nor batch_size=%s needs one, so no gradient is measured: set "
                "probe.interval_steps to have them in the ledger and the log.",
                *(policy.name, schedule.name),
            )
        return None
    who = [name for name, (_, with_variance) in needs.items() if with_variance]
    if who and given.variance is False:
        raise ValueError(f"probe.variance=False, but {who[0]} needs the variance: leave it at None.")
    variance = bool(who) or not needs if given.variance is None else given.variance
    return given, tuple(sorted(intervals)), variance


def check_exact(
    options: Probing,
    args: TrainingArguments,
    size: BatchSize,
    max_tokens: int | None,
    policy: Policy,
    streams: list[Stream],
) -> None:
    """Refuses an exact probe of steps that one rank does not do in one micro-batch.

    Args:
        options: How gradients are measured.
        args: The training arguments.
        size: The batch size.
        max_tokens: Most tokens of a micro-batch, or `None`.
        policy: The policy.
        streams: The streams.

    Raises:
        ValueError: If it is known that there will be several, or not known that there will not.
    """
    if not options.needs_one_micro_batch:
        return
    if args.world_size > 1:
        raise exact_refusal(f"there are {args.world_size} ranks")
    if options.homogeneous:
        raise exact_refusal("homogeneous=True makes one micro-batch or more a stream")
    if max_tokens is not None:
        raise exact_refusal("max_tokens_per_micro_batch cuts a step into as many as its lengths take")
    cap, limits = args.train_batch_size, size.schedule.limits
    largest = size.value if size.is_constant else limits.maximum
    if largest is None:
        raise exact_refusal(
            f"batch_size={size.schedule.name} may grow beyond per_device_train_batch_size={cap}; maximum={cap} bounds "
            "schedules that take it"
        )
    if largest > cap:
        raise exact_refusal(f"steps have up to {largest} samples and per_device_train_batch_size={cap}")
    weighed = [stream.name for stream in streams if stream.loss_weight != 1]
    if weighed:
        raise exact_refusal(f"loss_weight of {weighed} needs micro-batches of one stream each")
    if len(streams) > 1 and policy.start(describe(streams)).loss_weights is not None:
        raise exact_refusal(f"mixing={policy.name} weighs losses, for which micro-batches are of one stream each")
