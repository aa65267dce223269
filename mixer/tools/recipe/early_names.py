"""Fields of a recipe, known in a tenth of a second: importing torch and transformers takes five.

They are read from the source. All else that is wrong is found when the recipe is parsed (`mixer.tools.recipe.fields`).
"""

import ast
from collections.abc import Iterable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import docstring_parser

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


def _check(content: Any, known: Iterable[str], section: str, others: Sequence[str] = CLASS_KEYS) -> None:
    for name in content if isinstance(content, Mapping) else ():
        if isinstance(name, str) and name not in (*known, *others):
            raise unknown_field(f"{section}{name}", name, list(known))


class SourceField(NamedTuple):
    """A field of a dataclass, as its source has it.

    Attributes:
        kind: Its type.
        default: Its default; empty if it has none.
        text: What it is.
    """

    kind: str
    default: str
    text: str


def fields_of(package: str, file: str, name: str) -> dict[str, SourceField]:
    """Reads a dataclass's fields by name from its source.

    Args:
        package: The top package, which is not imported.
        file: The file in it.
        name: The class.

    Returns:
        The fields, without those of the classes above it.
    """
    spec = find_spec(package)
    assert spec is not None, package  # noqa: S101 what runs this needs both packages
    source = (Path(str(spec.origin)).parent / file).read_text(encoding="utf-8")
    found = next(node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == name)
    documented = docstring_parser.parse(ast.get_docstring(found) or "").params
    texts = {parameter.arg_name: " ".join((parameter.description or "").split()) for parameter in documented}
    nodes = (node for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name))
    return {node.target.id: _field_of(node, texts) for node in nodes if isinstance(node.target, ast.Name)}


def _field_of(node: ast.AnnAssign, texts: Mapping[str, str]) -> SourceField:
    """Reads a field, and the arguments of `dataclasses.field` if it is made by that."""
    name, default = ast.unparse(node.target), node.value
    given: dict[str | None, ast.expr] = {}
    if isinstance(default, ast.Call):
        given = {keyword.arg: keyword.value for keyword in default.keywords}
        default = given.get("default") or ast.Call(given["default_factory"], [], [])
    texts = {name: _help_in(given["metadata"]), **texts} if "metadata" in given else texts
    return SourceField(ast.unparse(node.annotation), ast.unparse(default) if default else "", texts.get(name, ""))


def _help_in(metadata: ast.expr) -> str:
    assert isinstance(metadata, ast.Dict), metadata  # noqa: S101 as dataclasses write it
    return next((str(value.value) for value in metadata.values if isinstance(value, ast.Constant)), "")
