"""Steps whose samples lack what the run counts: tokens or labels."""

import logging

import numpy as np

from mixer.mixture.controller import Mixing
from mixer.mixture.step_plan import StepPlan
from mixer.mixture.stream import Stream
from mixer.policies.contract import Unit
from mixer.utils.arrays import Int64Array
from mixer.utils.errors import wrong_value

_MOST_UNLABELLED = 32  # samples of a stream of which none has a label
logger = logging.getLogger(__name__)


def option_counting(mixing: Mixing, unit: Unit) -> str | None:
    """Names what of a run counts in a unit beside single streams; `None` if nothing does."""
    options = {
        f"unit={unit!r}": mixing.policy.unit == unit,
        f"A budget in {unit}": getattr(mixing.clock.budget, unit) is not None,
        f"batch_size={mixing.schedule.name}": mixing.schedule.unit == unit,
        "max_labels": unit == "labels" and mixing.planner.has_label_amounts,
    }
    return next((option for option, counts in options.items() if counts), None)


def check_counted(
    mixing: Mixing,
    plan: StepPlan,
    tokens: Int64Array,
    skipped: Int64Array | None = None,
    labels: Int64Array | None = None,
) -> None:
    """Refuses samples without tokens if the run counts tokens, and streams without labels if it counts labels.

    A stream without a label so far causes a warning, and an error once it had many samples: the first may be truncated.

    Args:
        mixing: The controller, which has planned the step.
        plan: Plan of the step.
        tokens: int64 `[num_streams]`: its tokens.
        skipped: int64 `[num_streams]`: its skipped samples; `None` for none.
        labels: int64 `[num_streams]`: its labels; `None` for none.

    Raises:
        ValueError: If a stream has samples but no tokens, or many and no labels.
    """
    has_samples = plan.counts > (0 if skipped is None else skipped)
    if not tokens[has_samples].all():
        _refuse_without_tokens(
            mixing, [mixing.planner.streams[at] for at in np.flatnonzero(has_samples & (tokens == 0))]
        )
    are_without = has_samples & (mixing.num_labels + (0 if labels is None else labels) == 0)
    if not are_without.any() or (option := option_counting(mixing, "labels")) is None:
        return
    names = [mixing.names[at] for at in np.flatnonzero(are_without)]
    if (mixing.seen[are_without] >= _MOST_UNLABELLED).any() or labels is None:
        raise wrong_value(
            option,
            f"needs labels, but no sample of {names} so far has one that the loss learns (all are -100, or none "
            "were counted). Check the chat template and max_length, or count in tokens.",
        )
    if not mixing.has_warned_of_labels:
        mixing.has_warned_of_labels = True
        logger.warning("%s: no sample of %s so far has a label that the loss learns.", option, names)


def _refuse_without_tokens(mixing: Mixing, lacking: list[Stream]) -> None:
    option = option_counting(mixing, "tokens")
    if option is None and any(stream.max_tokens is not None for stream in lacking):
        option, lacking = "max_tokens", [stream for stream in lacking if stream.max_tokens is not None]
    if option is not None:
        names = [stream.name for stream in lacking]
        raise wrong_value(
            option, f"needs token counts, but samples of {names} have no tokens and no mask.", found=names
        )
