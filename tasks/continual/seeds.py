"""The same continual run with several seeds."""

from collections.abc import Callable, Sequence
from pathlib import Path

from transformers import TrainingArguments, set_seed

from mixer.utils.errors import InvalidTypeError, InvalidValueError
from tasks.continual.continual import ContinualRun
from tasks.continual.copies import ModelCopies
from tasks.metrics.seed_scores import SeedScores, folder_of_seed
from tasks.task_folders import RUN_STATE_FILE

_MOST = 2**32 - 1  # of NumPy's generators


def run_seeds(
    new_run: Callable[[TrainingArguments], ContinualRun],
    args: TrainingArguments,
    seeds: int | Sequence[int],
    resume: bool = False,
    overwrite: bool = False,
) -> SeedScores:
    """Trains a continual run once with each seed, one after the other, each in a folder of its own.

    A run ends exactly as it would if it were the only one. `mixer report` on the
    common folder shows means and spreads.

    Args:
        new_run: Creates the run with the arguments of a seed, whose `seed` it may also give to the tasks: with a new
            model, memory and methods. The global random generators have been seeded.
        args: The training arguments; `output_dir` is the common folder, in which each seed has `seed-SEED`.
        seeds: The seeds, or how many: `args.seed` and those that follow.
        resume: Whether to resume the runs that are there; those that are finished are not run again.
        overwrite: Whether to remove the state of the runs that are there, and start anew.

    Returns:
        The scores.

    Raises:
        ValueError: If seeds are wrong, a run is made with other arguments, there are runs and neither `resume` nor
            `overwrite` is set; or as `ContinualRun.run`.
    """
    folder, copies = Path(str(args.output_dir)), ModelCopies(args)
    folders = seed_folders(seeds, args.seed, folder, resume or overwrite)
    for seed, path in folders.items():
        own = copies.arguments(str(path))
        own.seed = seed
        set_seed(seed)
        _checked(new_run(own), own).run(resume, overwrite)
    return SeedScores.read(folders)


def _checked(run: ContinualRun, own: TrainingArguments) -> ContinualRun:
    if not isinstance(run, ContinualRun):
        raise InvalidTypeError.about("new_run", f"must return a ContinualRun, got a {type(run).__name__}.")
    if run.args.seed != own.seed or run.folder != Path(str(own.output_dir)):
        raise InvalidValueError.about(
            "new_run", f"must use its arguments, with seed {own.seed}, but made {run.folder} with {run.args.seed}."
        )
    return run


def seed_folders(seeds: int | Sequence[int], first: int, folder: Path, may_be_there: bool) -> dict[int, Path]:
    """Gives each seed its folder.

    Args:
        seeds: The seeds, or how many.
        first: The first seed, of a number of them.
        folder: The common folder.
        may_be_there: Whether there may be runs in them already.

    Returns:
        The folders by seed.

    Raises:
        ValueError: If the seeds are wrong, or there are runs already.
    """
    is_number = isinstance(seeds, int) and not isinstance(seeds, bool)
    if (is_number and seeds < 1) or not (is_number or _are_seeds(seeds)):  # type: ignore[operator]
        raise InvalidValueError.about("seeds", f"must be how many, or a list of different ones, got {seeds!r}.")
    known = range(first, first + seeds) if isinstance(seeds, int) else seeds
    folders = {seed: folder_of_seed(folder, seed) for seed in known}
    if (folder / RUN_STATE_FILE).exists():
        raise InvalidValueError.about("seeds", f"{folder} holds a run of one seed already. Use another folder.")
    there = [seed for seed, path in sorted(folders.items()) if (path / RUN_STATE_FILE).exists()]
    if there and not may_be_there:
        raise InvalidValueError.about(
            "seeds",
            f"The seeds {there} have runs in {folder}: resume (--resume auto) or overwrite (--resume never) them.",
        )
    return folders


def _are_seeds(seeds: object) -> bool:
    return (
        isinstance(seeds, Sequence)
        and len(seeds) == len(set(seeds)) > 0
        and all(type(seed) is int and 0 <= seed <= _MOST for seed in seeds)
    )
