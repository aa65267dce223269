"""Names of a recipe's fields, checked in a second: importing torch and transformers takes ten.

They are read from the source. All else that is wrong is found when the recipe is parsed (`mixer.tools.recipe.fields`).
"""

import ast
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mixer.tools.recipe.fields import CLASS_KEYS, unknown_field
from mixer.tools.recipe.given import read_recipe_file

# Files and classes of the fields of a recipe, and of its sections.
RECIPE = ("mixer", "tools/recipe/recipe.py", "Recipe")
SECTIONS = {
    "model": [("mixer", "tools/recipe/model.py", "ModelRecipe")],
    "streams": [("mixer", "tools/recipe/streams.py", "StreamRecipe")],
    "training": [
        ("mixer", "run/config.py", "MixingOptions"),
        ("transformers", "training_args.py", "TrainingArguments"),
    ],
}


def check_names(words: Sequence[str]) -> None:
    """Refuses a name in a recipe's file that is no field, where nothing has to be imported to know that.

    Args:
        words: Arguments of a command that takes a recipe, its path first.

    Raises:
        InvalidValueError: Names the field and the nearest known one.
    """
    if not words or not Path(words[0]).is_file():
        return
    recipe, own = read_recipe_file(words[0]), fields_of(*RECIPE)
    sections = {name: [field for part in parts for field in fields_of(*part)] for name, parts in SECTIONS.items()}
    _check(recipe, own, "", [name for known in sections.values() for name in known])
    if recipe.get("trainer") is not None:  # those of TRL have more arguments
        del sections["training"]
    for section, known in sections.items():
        content = recipe.get(section)
        if section != "streams":
            _check(content, known, f"{section}.")
        elif isinstance(content, Mapping):
            for name, stream in content.items():
                _check(stream, known, f"streams.{name}.")


def _check(content: Any, known: Sequence[str], section: str, others: Sequence[str] = CLASS_KEYS) -> None:
    for name in content if isinstance(content, Mapping) else ():
        if isinstance(name, str) and name not in (*known, *others):
            raise unknown_field(f"{section}{name}", name, known)


def fields_of(package: str, file: str, name: str) -> list[str]:
    """Reads the names of a dataclass's fields from its source.

    Args:
        package: The top package, which is not imported.
        file: The file in it.
        name: The class.

    Returns:
        The names, without those of the classes above it.
    """
    spec = find_spec(package)
    assert spec is not None, package  # noqa: S101 what runs this needs both packages
    source = (Path(str(spec.origin)).parent / file).read_text(encoding="utf-8")
    body = next(node.body for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    return [node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)]
