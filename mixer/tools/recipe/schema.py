"""The JSON schema of recipes, made of the types that they are checked by."""

import functools
import inspect
import re
import sys
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

import docstring_parser
import yaml

from mixer.policies.contract import Policy
from mixer.policies.registry import AUTO, policy_classes
from mixer.schedules.base import Schedule
from mixer.schedules.registry import schedule_classes
from mixer.tools.recipe.fields import ARGUMENTS, CLASS, check_fields, options_of, parameters_of, subclasses_of
from mixer.tools.recipe.trainers import KINDS

DIALECT = "https://json-schema.org/draft/2020-12/schema"
# Packages of the types; another version of one may have other fields.
_PACKAGES = ("transformers", "trl", "sentence-transformers")
_PLAIN = {str: "string", int: "integer", float: "number", bool: "boolean", type(None): "null"}
_OWN = "mixer."
# Classes here are made by a trainer, known only once it is loaded.
_OF_TRAINERS = "mixer.trainer.grpo."
_DOTTED = {"type": "string", "pattern": r"\."}
_RULES: Mapping[type, Callable[[], Mapping[str, type]]] = {Policy: policy_classes, Schedule: schedule_classes}
# Words beside the names of classes.
_WORDS: Mapping[type, list[str]] = {Policy: [AUTO]}
_ELSEWHERE = re.compile(r"See `(\w+)`[,.]")
_EXAMPLE = re.compile(r"(?<=such as )`([^`]+)`|`([{\[][^`]+)`")

JSONSchema = dict[str, Any]


def schema_of(recipe_class: type, trainers: Sequence[str] = tuple(KINDS)) -> JSONSchema:
    """Makes the JSON schema of a recipe.

    Args:
        recipe_class: The recipe's dataclass.
        trainers: Values of its field `trainer` whose training arguments are described. Those of a trainer that is not
            installed may be anything.

    Returns:
        The schema. Its comment has the versions that it holds for; `$defs` has a class, or the arguments of one, by
        name.
    """
    made = _Definitions()
    content: JSONSchema = {"$schema": DIALECT, "$comment": versions(), "title": recipe_class.__name__}
    content |= made.arguments_of(recipe_class)
    if hasattr(recipe_class, "for_trainer"):
        training = content["properties"]["training"]
        reference, content["allOf"] = training.pop("$ref"), []
        for name in trainers:
            own = made.training_of(recipe_class, name, reference)
            content["allOf"].append(_where({"const": name}, own))
        others = {"not": _where({"enum": [*KINDS]}, {})["if"]}
        content["allOf"].append({"if": others, "then": {"properties": {"training": {"$ref": reference}}}})
    return {**content, "$defs": dict(sorted(made.content.items()))}


def versions() -> str:
    """Returns the installed versions that a schema holds for, in words."""
    found = []
    for package in _PACKAGES:
        try:
            found.append(f"{package} {version(package)}")
        except PackageNotFoundError:
            found.append(f"without {package}")
    return ", ".join(found)


def _where(trainer: JSONSchema, training: JSONSchema) -> JSONSchema:
    condition = {"properties": {"trainer": trainer}, "required": ["trainer"]}
    return {"if": condition, "then": {"properties": {"training": training}}}


@dataclass
class _Definitions:
    """The classes of a schema.

    Args:
        content: Their schemas by name, `BASE.NAME` for a class that is written by its name.
    """

    content: dict[str, JSONSchema] = field(default_factory=dict)

    def of_type(self, kind: Any) -> JSONSchema:
        """Makes the schema of a type; what it does not know may be anything, as in the checks."""
        options = options_of(kind)
        if len(options) > 1:
            return self._of_union(options)
        origin, parts = typing.get_origin(kind) or kind, typing.get_args(kind)
        if origin in _PLAIN:
            return {"type": _PLAIN[origin]}
        if origin is Literal:
            return {"enum": list(parts)}
        if not inspect.isclass(origin):
            return {}
        if issubclass(origin, Enum):
            return {"enum": [choice.value for choice in origin]}
        if issubclass(origin, Mapping):
            return {"type": "object", **({"additionalProperties": own} if (own := self._part(parts, 1)) else {})}
        if issubclass(origin, Sequence):
            items = {} if origin is tuple else self._part(parts, 0)
            return {"type": "array", **({"items": items} if items else {})}
        if is_dataclass(origin) and not inspect.isabstract(origin):
            return {"$ref": f"#/$defs/{self._plain(origin)}"}
        return {"$ref": f"#/$defs/{self._named(origin)}"} if origin.__module__.startswith(_OWN) else {}

    def _part(self, parts: Sequence[Any], place: int) -> JSONSchema:
        return self.of_type(parts[place]) if len(parts) > place else {}

    def _of_union(self, options: Sequence[Any]) -> JSONSchema:
        has_names = any(inspect.isclass(own) and (inspect.isabstract(own) or issubclass(own, Enum)) for own in options)
        made = [self.of_type(own) for own in options if not (own is str and has_names)]
        if any(is_dataclass(own) and not inspect.isabstract(own) for own in options):
            made.append(_of_class({"type": "string"}, {"type": "object"}))
        made = [own for place, own in enumerate(made) if own and own not in made[:place]]
        types = [own["type"] for own in made if own.keys() == {"type"}]
        if types and len(types) == len(made):
            return {"type": types[0] if len(types) == 1 else types}
        return {"anyOf": made} if len(made) > 1 else made[0]

    def _plain(self, kind: type) -> str:
        """Adds a class that is written as a mapping of its arguments."""
        if kind.__name__ not in self.content:
            self.content[kind.__name__] = {}  # it may have parts of itself
            self.content[kind.__name__].update(self.arguments_of(kind))
        return kind.__name__

    def _named(self, base: type) -> str:
        """Adds a base class, of which a recipe names a subclass, alone or with arguments."""
        if base.__name__ in self.content:
            return base.__name__
        whole: JSONSchema = {"description": _summary(base)}
        self.content[base.__name__] = whole
        names, forms = list(_WORDS.get(base, ())), []
        for own in sorted(_classes_of(base), key=lambda own: own.__name__):
            name, arguments = f"{base.__name__}.{own.__name__}", self.arguments_of(own)
            self.content[name] = _of_class({"const": own.__name__}, arguments)
            forms.append({"$ref": f"#/$defs/{name}"})
            if not arguments.get("required"):
                names.append(own.__name__)
        whole["oneOf"] = [{"enum": names}, _DOTTED, *forms, _of_class(_DOTTED, {"type": "object"})]
        if not inspect.isabstract(base) and parameters_of(base) is not None:
            whole["oneOf"].append(self.arguments_of(base))
        return base.__name__

    def arguments_of(self, kind: type) -> JSONSchema:
        """Makes the schema of a mapping of a class's arguments."""
        known, texts, own = parameters_of(kind), _texts(kind), dict[str, JSONSchema]()
        for name, type_of in (known or {}).items():
            text = _followed(texts.get(name, ""), name, kind)
            own[name] = {**self.of_type(type_of), **({"description": text} if text else {})}
            if (examples := _examples(text, type_of)) and "enum" not in own[name]:
                own[name]["examples"] = examples
        parameters = inspect.signature(kind).parameters
        for name, default in _defaults(kind).items():
            if name in own:
                own[name]["default"] = default
        required = [name for name in own if name in parameters and parameters[name].default is inspect.Parameter.empty]
        content: JSONSchema = {"type": "object", "description": _summary(kind), "properties": own}
        content |= {"required": required} if required else {}
        return content if known is None else {**content, "additionalProperties": False}

    def training_of(self, recipe_class: Any, trainer: str, shared: str) -> JSONSchema:
        """Refers to the training arguments of a trainer, in which fields of all trainers are references."""
        try:
            kind = typing.get_type_hints(recipe_class.for_trainer(trainer))["training"]
        except ValueError:  # its package is not installed
            return {}
        name = self._plain(kind)
        first, own = self.content[shared.rpartition("/")[2]]["properties"], self.content[name]["properties"]
        same = [field for field in own if own[field] == first.get(field)]
        own |= {field: {"$ref": f"{shared}/properties/{field}"} for field in same}
        return {"$ref": f"#/$defs/{name}"}


def _classes_of(base: type) -> Iterable[type]:
    """Lists the classes that a recipe can name: registered rules, of other packages too, or those of this package."""
    if base in _RULES:
        return _RULES[base]().values()
    classes = (kind for kind in subclasses_of(base) if kind.__module__.startswith(_OWN))
    own = (kind for kind in classes if not kind.__module__.startswith(_OF_TRAINERS))
    return {kind for kind in own if not inspect.isabstract(kind)}


def _of_class(name: JSONSchema, arguments: JSONSchema) -> JSONSchema:
    """Makes the schema of a class with arguments."""
    required = [CLASS, *([ARGUMENTS] if arguments.get("required") else [])]
    own = {CLASS: name, ARGUMENTS: arguments, "dict_kwargs": {"type": "object"}}
    return {"type": "object", "properties": own, "required": required, "additionalProperties": False}


def _summary(kind: type) -> str:
    return (docstring_parser.parse(kind.__doc__ or "").short_description or kind.__name__).replace("\n", " ")


@functools.cache
def _texts(kind: type) -> dict[str, str]:
    """Returns what the docstrings of a class and those above it, or the help of its fields, say of arguments."""
    texts: dict[str, str] = {}
    for own in reversed(kind.__mro__):
        parameters = docstring_parser.parse(own.__dict__.get("__doc__") or "").params
        texts |= {part.arg_name: part.description or "" for part in parameters}
    helps = {own.name: own.metadata.get("help", "") for own in fields(kind)} if is_dataclass(kind) else {}
    return {name: " ".join(text.split()) for name, text in {**texts, **{a: b for a, b in helps.items() if b}}.items()}


def _followed(text: str, name: str, kind: type) -> str:
    """Returns the text of another class's argument in the place of a reference to it."""
    found = _ELSEWHERE.match(text)
    there = getattr(sys.modules[kind.__module__], found[1], None) if found else None
    return text if there is None else _texts(there).get(name, text)


def _defaults(kind: type) -> dict[str, Any]:
    """Returns the defaults that are plain data."""
    parameters = inspect.signature(kind).parameters.values()
    found = {own.name: own.default for own in parameters if own.default is not own.empty}
    for own in fields(kind) if is_dataclass(kind) else ():
        if own.default_factory is not MISSING:
            found[own.name] = own.default_factory()
    found = {name: value.value if isinstance(value, Enum) else value for name, value in found.items()}
    found = {name: list(value) if isinstance(value, tuple) else value for name, value in found.items()}
    return {name: value for name, value in found.items() if isinstance(value, str | int | float | list | dict)}


def _examples(text: str, kind: Any) -> list[Any]:
    """Returns what a text gives as examples, if the type has them."""
    found = []
    for words in (first or second for first, second in _EXAMPLE.findall(text)):
        try:
            value = yaml.safe_load(words)
            check_fields(kind, value, "example")
        except (ValueError, TypeError, yaml.YAMLError):
            continue
        found.append(value)
    return found
