"""Options beside which a step has to be one micro-batch, where it shows only in the run that it is not."""

from accelerate import Accelerator
from transformers import TrainingArguments

from mixer.mixture.budget import Budget

_WHY = (
    "A step that fits into one micro-batch is cut all the same where each has to be of one stream: a policy weighs "
    "losses, a method or a probe wants it, or the losses of rows cannot be told apart; and where memory ran out."
)


def optimizer_name(args: TrainingArguments) -> str:
    """Gives the option `optim` as a user writes it.

    Args:
        args: The training arguments.

    Returns:
        The name.
    """
    return str(getattr(args.optim, "value", args.optim))


def steps_in_backward(args: TrainingArguments) -> bool:
    """Says whether the optimizer changes weights in the midst of each backward.

    Args:
        args: The training arguments.

    Returns:
        Whether it does: LOMO, AdaLomo, and those that go layer by layer.
    """
    name = optimizer_name(args)
    return "lomo" in name or "layerwise" in name


def check_budget(args: TrainingArguments, budget: Budget) -> None:
    """Refuses an optimizer whose learning rate goes step by step beside a budget that does not.

    Args:
        args: The training arguments.
        budget: The budget of the run.

    Raises:
        ValueError: With the way out.
    """
    name = optimizer_name(args)
    if "layerwise" in name and not budget.is_in_steps:
        raise ValueError(
            f"optim={name!r} has a learning rate for each layer that can only go step by step, but with a budget in "
            "samples or tokens it follows the data. Give the budget in steps or epochs, or take another optimizer."
        )


def check_one_pass(
    args: TrainingArguments, accelerator: Accelerator, step: int, num_micro_batches: int, is_first: bool
) -> None:
    """Refuses a step in parts where it would be trained wrongly, or not at all.

    Args:
        args: The training arguments.
        accelerator: The trainer's accelerator.
        step: Number of the step.
        num_micro_batches: Its micro-batches, on every rank alike.
        is_first: Whether it is the first that this process trains.

    Raises:
        ValueError: With the option, the reason and the way out.
    """
    if num_micro_batches < 2:
        return
    if steps_in_backward(args):
        raise ValueError(
            f"Step {step} has {num_micro_batches} micro-batches, and optim={optimizer_name(args)!r} would make a "
            f"step for each. {_WHY} Take an optimizer that steps once a step; adafactor needs little memory too."
        )
    always = accelerator.gradient_state.plugin_kwargs.get("sync_each_batch", False)
    if is_first and args.world_size > 1 and args.ddp_static_graph and not always:
        raise ValueError(
            f"Step {step}, the first of this run, has {num_micro_batches} micro-batches, and ddp_static_graph=True "
            f"needs one: torch fails where gradients are synchronised after several. {_WHY} Leave ddp_static_graph out."
        )
