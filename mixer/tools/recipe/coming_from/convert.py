"""Reads a configuration of another tool, tells whose it is, and writes it as a recipe."""

import importlib
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from mixer.tools.recipe.coming_from.reading import read
from mixer.tools.recipe.coming_from.source import LeftKeys, Source, flattened
from mixer.tools.recipe.places import retold
from mixer.tools.recipe.recipe_files import filled_in
from mixer.utils.errors import wrong_value

# The tools, each with a section of keys.yaml of its name, and with a module if the section does not name its `data`.
KINDS = {
    "axolotl": "Axolotl",
    "llamafactory": "LLaMA-Factory",
    "trl": "TRL",
    "swift": "ms-swift",
    "megatron": "Megatron-LM",
    "nemo": "NeMo",
    "torchtitan": "torchtitan",
    "sentence-transformers": "sentence-transformers",
}


class Conversion(NamedTuple):
    """A recipe made of another tool's configuration.

    Attributes:
        kind: The tool, one of `KINDS`.
        recipe: The recipe as plain data.
        left: Why a key was not carried over, by its name.
    """

    kind: str
    recipe: dict[str, Any]
    left: LeftKeys

    @property
    def changing(self) -> list[str]:
        """The keys that are not carried over, and without which something else may be learned."""
        return [key for key in self.left if key not in self.left.harmless]

    @property
    def text(self) -> str:
        """The recipe as YAML."""
        text: str = yaml.safe_dump(self.recipe, sort_keys=False, allow_unicode=True, width=120)
        return text


def convert(path: str, kind: str | None = None) -> Conversion:
    """Converts a configuration of another tool.

    Args:
        path: Its file: YAML, JSON, TOML, a shell script, or the card of a model of sentence-transformers.
        kind: The tool, one of `KINDS`; `None` tells it from the keys.

    Raises:
        ValueError: If the file is no such configuration, or asks for what recipes do not have; names the key.
        FileNotFoundError: If the file, or LLaMA-Factory's dataset_info.json, does not exist.
    """
    content = read(path)
    tables = yaml.safe_load((files("mixer.tools.recipe.coming_from") / "keys.yaml").read_text(encoding="utf-8"))
    shared = tables.pop("common")
    told = "sentence-transformers" if Path(path).suffix == ".md" else None
    chosen = kind or told or _kind_of(content, tables, path)
    keys = {**shared, **tables[chosen]}
    keys |= {part: {**shared[part], **tables[chosen][part]} for part in ("training", "reasons")}
    keys["harmless"] = [*shared["harmless"], *tables[chosen]["harmless"]]
    module = "tables" if "data" in keys else chosen
    tool, left = importlib.import_module(f"mixer.tools.recipe.coming_from.{module}"), LeftKeys()
    content = flattened(content, keys["roots"]) if "roots" in keys else content
    try:
        recipe = _padded(tool.recipe_of(Source(content, left), keys, Path(path).parent))
    except TypeError as error:
        raise wrong_value(path, f": a value is of another type than {KINDS[chosen]} has there: {error}.") from None
    made = Conversion(chosen, recipe, left)
    try:
        filled_in(made.text)
    except ValueError as error:
        raise retold(error, f"{path}: its recipe would be refused: {error}") from None
    return made


def _padded(recipe: dict[str, Any]) -> dict[str, Any]:
    """Gives the pad token to the tokenizer: as a training argument TRL has deprecated it."""
    training = dict(recipe["training"])
    if (token := training.pop("pad_token", None)) is None:
        return recipe
    name = recipe.get("tokenizer", recipe["model"]["name_or_path"])
    arguments = {"pretrained_model_name_or_path": name, "pad_token": token}
    loaded = {"factory": "transformers.AutoTokenizer.from_pretrained", "arguments": arguments}
    return {**recipe, "tokenizer": loaded, "training": training}


def _kind_of(content: Mapping[str, Any], tables: Mapping[str, Any], path: str) -> str:
    names = {*content, *flattened(content)}
    own = {kind: sorted({*tables[kind]["telling"]} & names) for kind in KINDS}
    found = [kind for kind in KINDS if own[kind]]
    if not found and {"model_name_or_path", "datasets"} <= content.keys():
        return "trl"
    if len(found) == 1:
        return found[0]
    keys = " and ".join(f"{KINDS[kind]}'s {', '.join(own[kind])}" for kind in found)
    has = (
        f"it has keys of several tools, {keys}" if found else f"its keys {list(content)!r:.200} do not identify a tool"
    )
    raise wrong_value(path, f": {has}; choose one by --kind {'|'.join(KINDS)}.")
