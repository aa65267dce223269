"""What the ranks of a command make sure of before they train: that all came, for the same run, and could begin."""

from collections.abc import Callable
from typing import TypeVar

import yaml
from jsonargparse import ArgumentParser, Namespace

from mixer.distributed.rendezvous import meet
from mixer.distributed.same_run import shared_options

_WORDS = (None, "auto", "must", "never")

Result = TypeVar("Result")


def build_together(
    parser: ArgumentParser, config: Namespace, resume: str | None, build: Callable[[], Result]
) -> Result:
    """Builds on all ranks of a launch, or ends all with what was wrong on one of them.

    Args:
        parser: The parser of the command.
        config: What it read, `training` among it.
        resume: From where the run goes on, as it was told; nodes may have a checkpoint in folders of their own.
        build: Builds what this rank trains by.

    Returns:
        What was built.

    Raises:
        ValueError: If the ranks were told different things, or one of them could not build.
        TimeoutError: If not all ranks came.
    """
    meeting = meet(config.training.ddp_timeout)
    if meeting.world_size > 1:
        run = yaml.safe_load(parser.dump(config, skip_validation=True))
        run["training"], run["--resume"] = shared_options(run["training"]), resume if resume in _WORDS else "PATH"
        meeting.check_same({name: value for name, value in run.items() if name != "recipe"})
    return meeting.run_on_all(build)
