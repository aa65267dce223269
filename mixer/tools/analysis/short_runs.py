"""Short runs of recipes that a command trains once."""

from pathlib import Path

from mixer.distributed.collectives import RankSync, RemoteError
from mixer.ledger.progress.bar import MixturePrinter
from mixer.tools.recipe.recipe import Recipe
from mixer.tools.recipe.recipe_files import differences, read_recipe
from mixer.utils.errors import wrong_value
from mixer.utils.files import write_text
from mixer.utils.text import first_of

FINISHED_FILE = "finished"
RECIPE_FILE = "recipe.yaml"
_FOLDER = "training.output_dir"


def finish(recipe: Recipe, text: str) -> None:
    """Trains a run to its end, without its own log and without keeping its model; does nothing if it is finished.

    Args:
        recipe: The recipe; it trains into `training.output_dir`.
        text: The recipe as YAML, for `mixer train`.

    Raises:
        ValueError: If the run was started with another recipe.
    """
    training = recipe.training
    folder, is_main = Path(str(training.output_dir)), training.process_index == 0
    ranks = RankSync(training.world_size, training.ddp_timeout_delta)
    try:
        is_finished = ranks.run_on_all(lambda: is_main and _begin(folder, text))
    except RemoteError as error:
        raise ValueError(str(error)) from None
    if ranks.max_over_ranks(int(is_finished)):
        return
    trainer = recipe.build()
    trainer.remove_callback(MixturePrinter)
    trainer.train()
    ranks.run_on_all(lambda: write_text(folder / FINISHED_FILE, "") if is_main else None)
    trainer.accelerator.free_memory()


def _begin(folder: Path, text: str) -> bool:
    """Says whether a run is finished; writes the recipe of another one beside it."""
    recipe, is_finished = folder / RECIPE_FILE, (folder / FINISHED_FILE).exists()
    if not is_finished:  # the folder of an unfinished run may be reused with another recipe
        write_text(recipe, text)
        return False
    try:
        different = differences(read_recipe(recipe), text) if recipe.exists() else []
    except (OSError, ValueError) as error:
        hint = "If it was the same recipe, delete that file to go on; else set another training.output_dir."
        raise wrong_value(_FOLDER, f"{recipe} cannot be read ({error}). {hint}") from None
    if different:
        text = f"{folder} was trained with another recipe, which differs in {', '.join(first_of(different, 4))}."
        raise wrong_value(_FOLDER, f"{text} Use that recipe, or set another folder.", found=different)
    return True
