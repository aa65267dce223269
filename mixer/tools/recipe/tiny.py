"""A recipe in miniature: the file of its name in the folder `tiny` beside it changes it to what any machine trains."""

import contextlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import yaml

from mixer.tools.recipe.given import read_recipe_file
from mixer.utils.errors import wrong_value
from mixer.utils.nested import merged

FLAG = "--tiny"


@contextlib.contextmanager
def tiny(arguments: Sequence[str]) -> Iterator[list[str]]:
    """Puts the recipe in miniature in the place of the recipe, if the flag says so.

    Args:
        arguments: Arguments of a command, the recipe's path first.

    Yields:
        The arguments, in which a file that lasts as long as this context is the recipe.

    Raises:
        ValueError: If there is nothing in miniature, or the recipe does not come first.
        FileNotFoundError: If the recipe does not exist.
    """
    if FLAG not in arguments:
        yield list(arguments)
        return
    path, *options = arguments
    if path.startswith("-"):
        raise wrong_value(FLAG, f"Give the path of the recipe first, as in mixer train RECIPE.yaml {FLAG}.")
    recipe, small = read_recipe_file(path), Path(path).parent / "tiny" / Path(path).name
    if not small.is_file():
        text = f"needs a miniature, which would be {small}. recipes/models has recipes with one."
        raise wrong_value(FLAG, text, found=path)
    options = [word for word in options if word != FLAG]
    own = {"training": {"output_dir": f"{recipe['training']['output_dir']}-tiny"}}  # not that of the whole run
    named = {word.partition("=")[0] for word in options}
    if not named & {"--training.output_dir", "--output_dir", "--resume"}:
        options.append("--overwrite")
    with tempfile.TemporaryDirectory() as folder:
        written = Path(folder) / Path(path).name
        content = merged(merged(recipe, read_recipe_file(str(small))), own)
        written.write_text(yaml.safe_dump(content, sort_keys=False))
        yield [str(written), *options]
