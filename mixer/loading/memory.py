"""How much of a step may be on a device at once, and what is known to fit."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from accelerate.utils.memory import should_reduce_batch_size
from torch import Tensor

from mixer.utils.validation import refusing_damage, whole_number


class MicroBatchMemoryError(torch.OutOfMemoryError):
    """A step does not fit into memory in micro-batches of this size; the message names the cap to set."""


def is_out_of_memory(error: Exception) -> bool:
    """Says whether a smaller micro-batch may help against an error.

    Args:
        error: What a forward or backward raised.

    Returns:
        Whether memory ran out, on any kind of device.
    """
    return isinstance(error, torch.OutOfMemoryError) or bool(should_reduce_batch_size(error))


class Size(NamedTuple):
    """How large a micro-batch is.

    Args:
        samples: Its samples.
        elements: Numbers in its largest input, padding included: the tokens of a batch of texts.
    """

    samples: int
    elements: int

    @classmethod
    def largest(cls, batches: Sequence[tuple[Mapping[str, Any], int]]) -> "Size":
        """Measures micro-batches.

        Args:
            batches: The inputs and the number of samples of each.

        Returns:
            The largest of each measure.
        """
        tensors = [value for inputs, _ in batches for value in inputs.values() if isinstance(value, Tensor)]
        return cls(
            max((num_samples for _, num_samples in batches), default=0),
            max((tensor.numel() for tensor in tensors), default=0),
        )


@dataclass(frozen=True)
class MicroBatchCap:
    """What a micro-batch may hold.

    Args:
        max_samples: Most samples.
        max_tokens: Most tokens, padding included, in place of `max_samples`.

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
        """Halves the cap, or what there is where that is less: else the same micro-batches would be tried again.

        Args:
            largest: The largest micro-batch that was tried on any rank.

        Returns:
            The smaller cap, or `None` if every micro-batch was a single sample already.
        """
        if largest.samples <= 1:
            return None
        if self.max_tokens is None:
            return replace(self, max_samples=min(self.max_samples, largest.samples) // 2)
        return replace(self, max_tokens=max(1, min(self.max_tokens, largest.elements) // 2))

    def state_dict(self, configured: "MicroBatchCap") -> dict[str, Any]:
        """Gives the cap as plain data.

        Args:
            configured: The cap that the arguments ask for.
        """
        return {"max_samples": self.max_samples, "max_tokens": self.max_tokens, "was_halved": self != configured}

    def taken_up(self, state: Mapping[str, Any] | None) -> "MicroBatchCap":
        """Gives the cap to go on with: a saved one that was found by halving, where it is smaller.

        Args:
            state: What `state_dict` gave; `None` for a checkpoint from before there was one.

        Returns:
            The cap.
        """
        if not state or not state["was_halved"]:
            return self
        with refusing_damage("the cap on micro-batches that was saved"):
            saved = {name: state[name] for name in ("max_samples", "max_tokens") if state[name] is not None}
            counts = {name: whole_number(number, name, 1) for name, number in saved.items()}
        max_tokens = (
            None if self.max_tokens is None else min(self.max_tokens, counts.get("max_tokens", self.max_tokens))
        )
        return MicroBatchCap(min(self.max_samples, counts["max_samples"]), max_tokens)


class Window:
    """Knows which sizes of micro-batches went through; the window is open while a larger one comes.

    The first step of a run proves nothing: the optimizer allocates its state after it.
    """

    def __init__(self) -> None:
        self._fits = Size(0, 0)
        self._has_begun = False

    def is_beyond(self, largest: Size) -> bool:
        """Says whether a step is larger than all that went through.

        Args:
            largest: Its largest micro-batch.

        Returns:
            Whether it is, in samples or in elements.
        """
        return largest.samples > self._fits.samples or largest.elements > self._fits.elements

    def passed(self, largest: Size) -> None:
        """Takes note of a step that fitted.

        Args:
            largest: Its largest micro-batch.
        """
        if self._has_begun:
            self._fits = Size(*map(max, self._fits, largest))
        self._has_begun = True


def explain(step: int, rank: int, cap: MicroBatchCap, largest: Size, smaller_cap: str, why_not_repeated: str) -> str:
    """Says what to do about a step that does not fit.

    Args:
        step: Number of the step, from 1.
        rank: The rank whose memory ran out.
        cap: The cap that it was cut by.
        largest: Its largest micro-batch.
        smaller_cap: Which arguments lower a cap in samples; `{}` stands for their number.
        why_not_repeated: Why it was not tried with a smaller cap.

    Returns:
        The message, with the cap to set.
    """
    smaller = cap.halved(largest)
    if smaller is None:
        return (
            f"Step {step} ran out of memory on rank {rank}: a single sample (of {largest.elements} elements in its "
            "largest input) does not fit, and no cap on micro-batches helps. Shorten the samples, use "
            "gradient_checkpointing=True or a smaller model."
        )
    if smaller.max_tokens is not None:
        way_out = f"max_tokens_per_micro_batch={smaller.max_tokens}; the total batch stays"
    else:
        way_out = smaller_cap.format(smaller.max_samples)
    found = f"Step {step} ran out of memory on rank {rank} with micro-batches of at most {cap}."
    return f"{found} Set {way_out}. {why_not_repeated}"
