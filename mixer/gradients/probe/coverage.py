"""What a probe reads of a model, and what it had to leave out."""

from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
from torch import nn
from transformers.utils import logging

from mixer.gradients.probe.layers.captures import Capture
from mixer.gradients.probe.sums import Target
from mixer.utils.arrays import FloatArray

logger = logging.get_logger(__name__)


@dataclass
class Covered:
    """What a probe reads of a model.

    Args:
        parameters: The parameters, in the order of the targets.
        targets: What is known of them.
        captures: The layers that hold them; none where whole gradients are read.
        num_elements: Number of elements of all trainable parameters.
        left_out: Numbers of the parameters that could not be read in the last measurement.
        told: Names of those that a warning has named.
    """

    parameters: tuple[nn.Parameter, ...]
    targets: tuple[Target, ...]
    captures: tuple[Capture, ...]
    num_elements: int
    left_out: set[int] = field(default_factory=set)
    told: set[str] = field(default_factory=set)

    @property
    def read(self) -> list[int]:
        """Numbers of the parameters that count."""
        return [target.index for target in self.targets if target.index not in self.left_out]

    @property
    def share(self) -> float:
        """Share of the elements of all trainable parameters that is read."""
        return sum(self.parameters[index].numel() for index in self.read) / self.num_elements

    def leave_out(self, failures: FloatArray) -> None:
        """Leaves parameters out of a measurement, and warns of those that are new.

        They are left out of this one only: what one batch does must not change the figures of later ones, or a run that
        goes on after a checkpoint would find others.

        Args:
            failures: `[num_parameters]`: not 0 where a parameter could not be read; the same on all ranks.

        Raises:
            ValueError: If nothing is left.
        """
        self.left_out = set(np.flatnonzero(failures).tolist())
        self.warn((self.targets[index].name, self.parameters[index]) for index in self.left_out)
        if not self.read:
            raise ValueError(
                "The gradient probe could read no layer: no inputs have the rows of the batch, one for each of the "
                "stream_ids given to start(), as their first axis, or no backward came between start() and finish(). "
                "Give one id for each row of the inputs, or use homogeneous=True, with one stream in each micro-batch."
            )

    def warn(self, missed: Iterable[tuple[str, nn.Parameter]], reason: str = "") -> None:
        """Names parameters that are left out, each once.

        Args:
            missed: Their names, and they.
            reason: What is known of the reason, beside the kind of the layer.
        """
        sizes = {name: parameter.numel() for name, parameter in missed if name not in self.told}
        if not sizes:
            return
        self.told.update(sizes)
        names = sorted(sizes, key=lambda name: -sizes[name])
        logger.warning(
            "The gradient probe cannot tell the streams apart in %s%s: %.1f %% of the trainable parameters, left out "
            "of its figures. %shomogeneous=True reads any kind of layer.",
            ", ".join(names[:5]),
            f" and {len(names) - 5} more" if len(names) > 5 else "",
            100.0 * sum(sizes.values()) / self.num_elements,
            reason,
        )
