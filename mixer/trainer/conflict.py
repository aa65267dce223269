"""The option `conflict`: what it makes of what is given, and what it cannot be used beside."""

from collections.abc import Sequence
from typing import Any

from transformers import Trainer

from mixer.schedules import Schedule
from mixer.trainer.checks import optimizer_name, steps_in_backward
from mixer.trainer.gradient_aggregation import GradientAggregation
from mixer.trainer.method import Method, as_methods


def with_conflict(methods: object, conflict: Any) -> tuple[Method, ...]:
    """Adds what the option `conflict` stands for to the methods.

    Args:
        methods: What the user gives as methods.
        conflict: A name, an aggregator or weighting of torchjd, a `GradientAggregation`, or `None` for nothing.

    Returns:
        The methods; what makes the gradient goes first, so that the others see the one that is made.

    Raises:
        ValueError: If there is no aggregator of that name, or methods have one already.
        TypeError: If methods are none.
    """
    given = as_methods(methods)
    if conflict is None:
        return given
    if any(isinstance(method, GradientAggregation) for method in given):
        raise ValueError("conflict and methods both say how the streams' gradients become one: give one of the two.")
    return (conflict if isinstance(conflict, GradientAggregation) else GradientAggregation(conflict), *given)


def check_conflict(trainer: Trainer, schedule: Schedule, methods: Sequence[Method]) -> None:
    """Refuses what leaves no gradient for each stream.

    Args:
        trainer: The trainer, after its own construction.
        schedule: The batch-size schedule.
        methods: What takes part in its steps.

    Raises:
        ValueError: With the reason and the way out.
    """
    if not any(isinstance(method, GradientAggregation) and method.one_stream_each for method in methods):
        return
    if steps_in_backward(trainer.args):
        raise ValueError(
            f"optim={optimizer_name(trainer.args)!r} changes weights in the midst of a backward, before the streams' "
            "gradients are complete. Take another optimizer, or leave conflict out."
        )
    if trainer.args.world_size > 1 and "gradient_noise" in schedule.needs:
        raise ValueError(
            f"batch_size={schedule.name} goes by what the ranks' gradients of a step differ by, and with conflict "
            "these are gradients of one stream alone. Take a schedule that measures no noise, or leave conflict out."
        )
    apart = [method.name for method in methods if type(method).goes_first is not Method.goes_first]
    if apart:
        raise ValueError(
            f"conflict and the methods {apart} both take gradients apart to make the step's of them: give one of the "
            "two."
        )
