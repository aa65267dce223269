"""Evaluations of several sets that keep what the caller asked for, such as `num_beams=4`."""

from collections.abc import Mapping
from typing import Any

from transformers import Trainer


class NestedEvaluationMixin(Trainer):
    """A Trainer whose evaluation of a dict of sets hands its options on to that of each set.

    The Trainer evaluates each set by a call of its own, without the options for generation that the outer call had.
    """

    _evaluation_options: Mapping[str, Any] = {}

    def evaluate(
        self,
        eval_dataset: Any = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
        **options: Any,
    ) -> dict[str, float]:
        """Evaluates; see `Trainer.evaluate`.

        Args:
            eval_dataset: As for the Trainer.
            ignore_keys: As for the Trainer.
            metric_key_prefix: As for the Trainer.
            **options: What else the Trainer class takes, such as a `Seq2SeqTrainer`'s options for generation.

        Returns:
            The metrics.
        """
        outer = self._evaluation_options
        self._evaluation_options = {**outer, **options}
        try:
            metrics: dict[str, float] = super().evaluate(
                eval_dataset, ignore_keys, metric_key_prefix, **self._evaluation_options
            )
        finally:
            self._evaluation_options = outer
        return metrics
