"""Going on with a run of the plain Trainer: what its checkpoint lacks is as if it had had this mixture."""

from pathlib import Path

from transformers import TrainerState
from transformers.trainer import TRAINER_STATE_NAME
from transformers.utils import logging

from mixer.run.state import Basis
from mixer.trainer.save import Progress
from mixer.utils.errors import InvalidValueError

logger = logging.get_logger(__name__)

_HINT = "To go on anyway, set allow_inexact=True."


def take_over(basis: Basis, checkpoint: Path) -> Progress:
    """Moves a mixture that has just begun to the step of a checkpoint of the plain Trainer, which all ranks have read.

    The Trainer itself restores weights, optimizer, learning rate and random numbers. Streams begin where so many steps
    of this mixture would have left them.

    Args:
        basis: The trainer, the plan of the run, the run and its ranks.
        checkpoint: The checkpoint's folder.

    Returns:
        The position of the loop.

    Raises:
        ValueError: If the batch size or the data cannot be those of that run, unless that is allowed.
    """
    trainer, plan, run, _ = basis
    state = TrainerState.load_from_json(str(checkpoint / TRAINER_STATE_NAME))
    mixing = run.mixing
    mixing.pass_over(state.global_step)
    problem = _other_amount(mixing.clock.epoch, state, not mixing.clock.has_length)
    rows = [mixing.names[number] for number in mixing.planner.row_drawers]
    if problem is None and rows:
        problem = InvalidValueError(
            f"Iterable streams begin with their first rows again, for {checkpoint} does not say how far {rows} were "
            f"read. {_HINT}",
            option="resume_from_checkpoint",
            stream=rows[0],
            hint=_HINT,
        )
    if problem is not None and not plan.config.allow_inexact:
        raise problem
    if trainer.is_world_process_zero():
        logger.warning(
            "The run continues from %s, a checkpoint of the plain Trainer: weights, optimizer, learning rate, random "
            "numbers and step %d are those of that run. Not exact: the rows it has trained on. Streams begin where %d "
            "steps of this mixture would have left them (%s samples). Tokens so far, policy and ledger begin here.%s",
            *(checkpoint, state.global_step, state.global_step),
            *(f"{mixing.clock.num_samples:,}", "" if problem is None else f" {problem}"),
        )
    return Progress(running_losses=[0.0] * trainer.args.world_size, last_logged_step=state.global_step)


def _other_amount(epoch: float, state: TrainerState, spans_run: bool) -> InvalidValueError | None:
    """Compares the epochs that the steps make with those of the checkpoint: its batch size is not saved."""
    if spans_run or state.epoch is None or abs(epoch - state.epoch) <= 1e-6 * max(1.0, epoch):
        return None
    return InvalidValueError(
        f"batch_size, or the data: {state.global_step} steps were {state.epoch:g} epochs in the checkpoint, and are "
        f"{epoch:g} with per_device_train_batch_size, gradient_accumulation_steps, ranks and streams as they are now. "
        f"{_HINT}",
        option="batch_size",
        expected=f"as in the run of the checkpoint, in which {state.global_step} steps were {state.epoch:g} epochs",
        found=epoch,
        hint=_HINT,
    )
