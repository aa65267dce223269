"""Micro-batch caps: how much of a step can be on the device at once, and which sizes are known to fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor

from mixer.utils.validation import refusing_damage, whole_number


class MicroBatchMemoryError(torch.OutOfMemoryError):
    """A step runs out of memory at this micro-batch size; the message names the cap to set."""


def is_out_of_memory(error: Exception) -> bool:
    """Whether an error means that memory ran out, on any kind of device, so that smaller micro-batches may help."""
    return isinstance(error, torch.OutOfMemoryError) or bool(should_reduce_batch_size(error))


class Size(NamedTuple):
    """Size of a micro-batch.

    Args:
        samples: Number of samples.
        elements: Elements of its largest input, including padding: tokens, for text.
    """

    samples: int
    elements: int

    @classmethod
    def largest(cls, batches: Sequence[tuple[Mapping[str, Any], int]]) -> "Size":
        """Returns the maximum of each measure over micro-batches, given as pairs of inputs and number of samples."""
        tensors = [value for inputs, _ in batches for value in inputs.values() if isinstance(value, Tensor)]
        return cls(
            max((num_samples for _, num_samples in batches), default=0),
            max((tensor.numel() for tensor in tensors), default=0),
        )


@dataclass(frozen=True)
class MicroBatchCap:
    """Maximum size of a micro-batch.

    Args:
        max_samples: Maximum samples.
        max_tokens: Maximum tokens, including padding; replaces `max_samples`.

    Example:
        >>> MicroBatchCap(16).halved(Size(10, 1000))
        MicroBatchCap(max_samples=5, max_tokens=None)
    """

    max_samples: int
    max_tokens: int | None = None

    def __str__(self) -> str:
        number, unit = (self.max_samples, "sample") if self.max_tokens is None else (self.max_tokens, "token")
        return f"{number} {unit}" if number == 1 else f"{number} {unit}s"

    def halved(self, largest: Size) -> "MicroBatchCap | None":
        """Halves the cap or the largest micro-batch, whichever is smaller.

        Args:
            largest: Largest micro-batch tried on any rank.

        Returns:
            Smaller cap, or `None` if every micro-batch was a single sample already.
        """
        if largest.samples <= 1:
            return None
        if self.max_tokens is None:
            return replace(self, max_samples=min(self.max_samples, largest.samples) // 2)
        return replace(self, max_tokens=max(1, min(self.max_tokens, largest.elements) // 2))

    def state_dict(self, configured: "MicroBatchCap") -> dict[str, Any]:
        """Returns the cap as plain data; `configured` is the cap set by the arguments."""
        return {"max_samples": self.max_samples, "max_tokens": self.max_tokens, "was_halved": self != configured}

    def lowered_to(self, state: Mapping[str, Any] | None) -> "MicroBatchCap":
        """Returns this cap lowered to a saved cap that was found by halving, or unchanged.

        Args:
            state: Saved state, or `None`.
        """
        if not state:
            return self
        with refusing_damage("the saved micro-batch cap"):
            if not state["was_halved"]:
                return self
            max_samples = whole_number(state["max_samples"], "max_samples", 1)
            max_tokens = self.max_tokens
            if max_tokens is not None and state["max_tokens"] is not None:
                max_tokens = min(max_tokens, whole_number(state["max_tokens"], "max_tokens", 1))
        return MicroBatchCap(min(self.max_samples, max_samples), max_tokens)


class SucceededSizes:
    """Tracks which micro-batch sizes succeeded; the window is open while larger ones come.

    The first step of a run proves nothing: the optimizer allocates its state after it.
    """

    def __init__(self) -> None:
        self._fits = Size(0, 0)
        self._has_begun = False

    def is_beyond(self, largest: Size) -> bool:
        """Whether a step's largest micro-batch exceeds all successful ones, in samples or in elements."""
        return largest.samples > self._fits.samples or largest.elements > self._fits.elements

    def record_success(self, largest: Size) -> None:
        """Records the largest micro-batch of a successful step."""
        if self._has_begun:
            self._fits = Size(*map(max, self._fits, largest))
        self._has_begun = True


def explain(step: int, rank: int, cap: MicroBatchCap, largest: Size, smaller_cap: str, why_not_repeated: str) -> str:
    """Returns the error message for a step that ran out of memory, with the cap to set.

    Args:
        step: Number of the step, from 1.
        rank: The rank that ran out of memory.
        cap: Its micro-batch cap.
        largest: Its largest micro-batch.
        smaller_cap: Arguments that lower a cap in samples; `{}` stands for their number.
        why_not_repeated: Why the step was not retried with a smaller cap.
    """
    smaller = cap.halved(largest)
    if smaller is None:
        return (
            f"Step {step} ran out of memory on rank {rank} with a single sample (of {largest.elements} elements): no "
            "micro-batch cap helps. Shorten the samples, use gradient_checkpointing=True or a smaller model."
        )
    if smaller.max_tokens is not None:
        hint = f"max_tokens_per_micro_batch={smaller.max_tokens}; the total batch is unchanged"
    else:
        hint = smaller_cap.format(smaller.max_samples)
    failure = f"Step {step} ran out of memory on rank {rank} with micro-batches of at most {cap}."
    return f"{failure} Set {hint}. {why_not_repeated}"
