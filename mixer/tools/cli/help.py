"""`mixer help FIELD`: what a field of a recipe is, by the schema of recipes."""

import functools
import json
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jsonargparse import ArgumentParser, Namespace

from mixer.tools.cli.command import Command, add_json
from mixer.tools.cli.registry import command_names, load_command
from mixer.tools.cli.schema import recipe_class_of
from mixer.tools.console import print_json
from mixer.utils.errors import require, wrong_value
from mixer.utils.text import did_you_mean, print_lines

_WIDTH = 110
_NAME = "NAME"  # in the place of a name that the recipe gives
_TYPES = {
    "string": "text",
    "integer": "whole number",
    "number": "number",
    "boolean": "true or false",
    "null": "null",
    "array": "list",
    "object": "mapping",
}

# Arguments of the trainer that recipes call otherwise.
_OF_THE_TRAINER = {"eval_dataset": "evaluation", "train_dataset": "streams"}

Schema = Mapping[str, Any]
Path = tuple[str, ...]


def help() -> Command:  # noqa: A001 the command's name
    """Explain a field of recipes, a policy, a schedule or a format."""
    parser = ArgumentParser(
        description="Explains a field of a recipe, a policy, a schedule or a format: what it is, what it may be, its "
        "default and its parts. Without a field, lists those of a recipe. A command before it chooses the recipes of "
        "that command (mixer help continual memory); a command alone prints its options."
    )
    parser.add_argument(
        "words", nargs="*", default=[], metavar="FIELD", help="The field, such as streams.NAME.data or PiKE."
    )
    add_json(parser)
    return Command(parser, _run, example="mixer help training.learning_rate")


def _run(config: Namespace) -> None:
    words: list[str] = config.words
    command, *fields = words if words and words[0] in command_names() else ["", *words]
    if command and not fields:
        require(not config.json, "json", "left out for a command, whose options are printed as text", found=True)
        parser = load_command(command).parser
        parser.prog = f"mixer {command}"
        print_lines(*parser.format_help().splitlines())
        return
    found = _find(recipe_class_of(command or "train"), ".".join(fields))
    if config.json:
        print_json([{"field": field, **part} for field, part in found.items()])
    else:
        print_lines(*(line for field, part in found.items() for line in _lines(field, part)))


def _find(recipe_class: type, name: str) -> dict[str, dict[str, Any]]:
    """Explains the field of a name, or the uppermost that end with it; names that recipes give may be left out.

    Raises:
        ValueError: If there is none.
    """
    from mixer.tools.recipe.schema import schema_of  # transformers

    if not name:
        schema = schema_of(recipe_class, trainers=())
        return {"recipe": _explained(schema, schema)}
    places: list[tuple[Path, Schema]] = []
    for trainers in ({"trainers": ()}, {}):  # fields of other packages' trainers take seconds to import
        schema = schema_of(recipe_class, **trainers)
        places = list(_walked(schema, schema))
        for path, node in places:
            if _pattern(path).fullmatch(f"{name}."):
                return {".".join(path): _explained(schema, node)}
        ends = {id(node): (path, node) for path, node in reversed(places) if _ends_with(path, name)}
        if ends:  # once, where several fields have parts of one class, and the nearest ones
            least = min(len(path) for path, _ in ends.values())
            shown = [(path, node) for path, node in reversed([*ends.values()]) if len(path) == least]
            return {".".join(path): _explained(schema, node) for path, node in shown}
    known = sorted({word for path, _ in places for word in (path[-1], ".".join(path))})
    text = (
        f"There is no field {name!r}.{did_you_mean(_OF_THE_TRAINER.get(name, name), known)} mixer help lists those of "
        "a recipe, and mixer policies"
    )
    raise wrong_value("FIELD", f"{text} and mixer schedules list the rules.", found=name)


def _ends_with(path: Path, name: str) -> bool:
    return any(_pattern(path[place:]).fullmatch(f"{name}.") for place in range(len(path)) if path[place] != _NAME)


@functools.cache
def _pattern(path: Path) -> re.Pattern[str]:
    return re.compile("".join(r"(?:[^.]+\.)?" if part == _NAME else re.escape(part) + r"\." for part in path))


def _walked(schema: Schema, node: Schema, path: Path = (), inside: frozenset[str] = frozenset()) -> Iterator[Any]:
    """Goes through all fields, but not into a class within itself."""
    for name, part in _parts(schema, node).items():
        yield (*path, name), part
        own = frozenset(_references(part))
        if not own & inside:
            yield from _walked(schema, part, (*path, name), inside | own)


def _references(node: Schema) -> Iterator[str]:
    """Lists the classes that a value may be, or the parts of a list."""
    if "$ref" in node:
        yield node["$ref"]
    for part in (*node.get("anyOf", ()), *([node["items"]] if "items" in node else [])):
        yield from _references(part)


def _parts(schema: Schema, node: Schema) -> dict[str, Schema]:
    """Returns the fields within one, and its classes with their arguments, by name."""
    found: dict[str, Schema] = {}
    for own in _alternatives(schema, node):
        properties = own.get("properties", {})
        if "class_path" not in properties:
            found |= properties
        elif "const" in properties["class_path"]:
            found[properties["class_path"]["const"]] = properties["init_args"]
        if own.get("additionalProperties"):
            found[_NAME] = own["additionalProperties"]
        found |= _parts(schema, own["items"]) if "items" in own else {}
    return found


def _alternatives(schema: Schema, node: Schema) -> Iterator[Schema]:
    """Goes through what a value may be; the training arguments of all trainers are one."""
    own = _resolved(schema, node)
    yield own
    for part in (*own.get("anyOf", ()), *own.get("oneOf", ())):
        yield from _alternatives(schema, part)
    if cases := [part["then"]["properties"]["training"] for part in own.get("allOf", ())]:
        yield {"properties": {"training": {**own["properties"]["training"], "anyOf": cases}}}


def _resolved(schema: Schema, node: Schema) -> Schema:
    if "$ref" not in node:
        return node
    steps = node["$ref"].split("/")[1:]
    return {**functools.reduce(lambda part, step: part[step], steps, schema), **node}


def _explained(schema: Schema, node: Schema) -> dict[str, Any]:
    own, parts = _resolved(schema, node), _parts(schema, node)
    if parts.keys() == {_NAME}:
        parts = {f"{_NAME}.{name}": part for name, part in _parts(schema, parts[_NAME]).items()}
    texts = {name: _described(_resolved(schema, part)) for name, part in parts.items()}
    return {**_described(own), "type": _in_words(node), "fields": texts}


def _described(node: Schema) -> dict[str, Any]:
    more = {key: node[key] for key in ("default", "examples") if key in node}
    return {"type": _in_words(node), "text": node.get("description", ""), **more}


def _in_words(node: Schema) -> str:
    """Says what a value may be; a class has its name."""
    if "class_path" in node.get("properties", {}):
        return ""
    if "enum" in node:
        return f"one of {', '.join(map(str, node['enum']))}"
    if "$ref" in node:
        name: str = node["$ref"].rpartition("/")[2]
        return name
    if "anyOf" in node:
        return " or ".join(dict.fromkeys(word for part in node["anyOf"] if (word := _in_words(part))))
    types: Any = node.get("type", [])
    of_parts = node.get("items") or node.get("additionalProperties")
    inner = f" of {words}" if of_parts and (words := _in_words(of_parts)) else ""
    return " or ".join(_TYPES[own] + inner for own in ([types] if isinstance(types, str) else types))


def _lines(field: str, part: Mapping[str, Any]) -> Sequence[str]:
    lines = [f"{field}: {_kind(part)}", *_wrapped(part["text"], 2)]
    for example in part.get("examples", ()):
        lines += _wrapped(f"Example: {json.dumps(example)}", 2)
    for name, own in part["fields"].items():
        first = re.split(r"(?<=\.)\s", own["text"])[0]
        lines += _wrapped(f"{name} ({kind}): {first}" if (kind := _kind(own)) else f"{name}: {first}", 4, 8)
    return [*lines, ""]


def _kind(part: Mapping[str, Any]) -> str:
    default = [f"default {json.dumps(part['default'])}"] if part.get("default") not in (None, [], {}) else []
    return ", ".join([part["type"], *default] if part["type"] else default)


def _wrapped(text: str, indent: int, hanging: int | None = None) -> list[str]:
    after = " " * (indent if hanging is None else hanging)
    return textwrap.wrap(text, _WIDTH, initial_indent=" " * indent, subsequent_indent=after, break_on_hyphens=False)
