"""Continual runs of a recipe: one, or one with each seed."""

from pathlib import Path

from jsonargparse import ArgumentParser, Namespace

from mixer.distributed.launch import build_together
from mixer.tools.cli.command import build_recipe
from mixer.utils.errors import InvalidValueError
from mixer.utils.files import write_text
from mixer.utils.resume_hint import resumed_with
from tasks.continual.continual import ContinualRun
from tasks.continual.seeds import seed_folders
from tasks.continual.task_checkpoints import checkpoints_in, remove_run
from tasks.metrics.score_matrix import ScoreMatrix
from tasks.metrics.seed_scores import SeedScores, runs_in
from tasks.task_folders import RUN_STATE_FILE
from tasks.tools.recipe import ContinualRecipe

Seeds = int | list[int]


def train_seeds(
    parser: ArgumentParser, config: Namespace, seeds: Seeds, resume: str | None
) -> tuple[bool, dict[int, Path], SeedScores]:
    """Trains with each seed, in a folder of its own.

    Args:
        parser: The parser of recipes.
        config: The recipe.
        seeds: The seeds, or how many.
        resume: What `--resume` says.

    Returns:
        Whether this rank writes, the folders by seed, and the scores.
    """
    folder = Path(config.training.output_dir)
    folders = seed_folders(seeds, config.training.seed, folder, may_be_there=resume is not None)
    if resume == "must" and runs_in(folder):
        resume = "auto"  # not all need be there
    for seed, path in folders.items():
        writes, _ = train_one(parser, placed(config, path, seed), resume)
    return writes, folders, SeedScores.read(folders)


def placed(config: Namespace, folder: Path, seed: int) -> Namespace:
    """Returns a recipe with another folder and seed."""
    config = config.clone()
    config.training.seed, config.training.output_dir = seed, str(folder)
    return config


def train_one(parser: ArgumentParser, config: Namespace, resume: str | None) -> tuple[bool, ScoreMatrix]:
    """Trains one run; returns whether this rank writes, and the scores."""
    run = checked(parser, config, resume)
    run.hold_output()
    try:
        with resumed_with("--resume auto"):
            _train(run, resume, parser.dump(config, skip_validation=True))
    finally:
        run.release_output()
    return run.args.should_save, run.scores


def checked(parser: ArgumentParser, config: Namespace, resume: str | None) -> ContinualRun:
    """Builds a run, and checks it before anything that is there is touched."""

    def build() -> ContinualRun:
        run = build_recipe(ContinualRecipe, parser, config).build()
        run.check()
        return run

    return build_together(parser, config, resume, build)


def _train(run: ContinualRun, resume: str | None, recipe: str) -> None:
    folder, args = run.folder, run.args
    with args.main_process_first(local=False):  # no rank looks at what is there before it is settled
        if args.should_save:
            _settle(folder, resume)
    run.begin(resume in ("auto", "must"))
    if args.should_save:
        write_text(folder / "recipe.yaml", recipe)
    run.run()


def _settle(folder: Path, resume: str | None) -> None:
    """Refuses states that `--resume` does not allow, and removes the old run for a new start."""
    is_active = (folder / RUN_STATE_FILE).exists() or bool(checkpoints_in(folder))
    if resume is None and is_active:
        raise InvalidValueError.about(
            "training.output_dir", f"{folder} holds a run: give --resume auto or --overwrite."
        )
    if resume == "must" and not is_active:
        raise ValueError(f"--resume must: there is no continual run in training.output_dir {folder} to resume.")
    if resume == "never":
        remove_run(folder)
