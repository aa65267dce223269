"""Models with Liger's losses, which leave no logits in training by which the losses of rows could be told apart."""

from collections.abc import Mapping
from typing import Any

from transformers import TrainingArguments

from mixer.models.losses import RowLossReader


def hides_rows(args: TrainingArguments) -> bool:
    """Says whether the losses of rows cannot be read off a forward.

    The fused loss has no logits in training, though it has them in evaluation. The other one writes the gradient over
    them, so that what is there after the forward is no logits any more. By default Liger puts the fused one in place.

    Args:
        args: The training arguments.

    Returns:
        Whether one of the two is in place.
    """
    if not args.use_liger_kernel:
        return False
    config = args.liger_kernel_config or {}
    return bool(config.get("fused_linear_cross_entropy", True) or config.get("cross_entropy", False))


class RowlessTracker(RowLossReader):
    """A tracker that tells no rows apart: micro-batches are of one stream each, and their loss is that stream's."""

    def _hear(self, output: Any, kwargs: Mapping[str, Any]) -> None:
        if self._keeps_output:
            self.output = output
