"""The help of a command with a recipe, read from the source: a parser of recipes imports torch and transformers."""

import argparse
import ast
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mixer.tools.cli.command import EXAMPLE, USED_MOST, usage_of
from mixer.tools.recipe.early_names import RECIPE, SECTIONS, SourceField, fields_of

_MORE = (
    "--FIELD.help [CLASS] shows what a field that is an object takes, --FIELD+ adds to a list, --print_config shows "
    "the whole recipe. A recipe before --help adds the options of its trainer."
)


def early_help(name: str, module: str) -> str:
    """Writes the help of a command.

    Args:
        name: Its name, which is also that of the function that makes it.
        module: The module of this function.
    """
    declared = _Constants(module).arguments_of(name)
    parser = argparse.ArgumentParser(
        prog=f"mixer {name}", usage=usage_of(name, declared["usage"]), description=declared["description"], epilog=_MORE
    )
    parser.add_argument("--recipe", help="Path of the recipe, a YAML file.")
    parser.add_argument("--json", action="store_true", help="Print one JSON document, and nothing else, on stdout.")
    own = {option[2:]: arguments for option, arguments in declared["options"].items()}
    options: dict[str, dict[str, Any]] = {place: _argument(place, field) for place, field in _fields()} | own
    groups: dict[str, Any] = {}
    for place in dict.fromkeys((*(most for most in USED_MOST if most in options), *own, *options)):
        section = f"'s {place.partition('.')[0]}" if "." in place else ""
        title = "Used most" if place in USED_MOST else "Of this command" if place in own else f"The recipe{section}"
        group = groups[title] = groups.get(title) or parser.add_argument_group(title)
        group.add_argument(f"--{place}", **{**options[place], "help": options[place]["help"].replace("%", "%%")})
    return f"{parser.format_help()}\n{EXAMPLE}{declared['example']}\n"


def _argument(place: str, field: SourceField) -> dict[str, Any]:
    default = f"default: {field.default}" if field.default else "required"
    text = f"{field.text} (type: {field.kind}, {default})"
    return {"metavar": place.rpartition(".")[2].upper(), "help": text.strip()}


def _fields() -> Iterator[tuple[str, SourceField]]:
    """Gives the recipe's fields, and those of its sections that options reach, by dotted place."""
    sections = {name: parts for name, parts in SECTIONS.items() if name != "streams"}  # by name of the stream
    yield from fields_of(*RECIPE).items()
    for section, parts in sections.items():
        for part in parts:
            yield from ((f"{section}.{name}", field) for name, field in fields_of(*part).items())


class _Constants(dict[str, Any]):
    """Constants of a module, each read from the source when it is asked for; the module is not imported."""

    def __init__(self, module: str):
        super().__init__()
        spec = find_spec(module)
        assert spec is not None, module  # noqa: S101 a command of ours
        self._nodes = ast.parse(Path(str(spec.origin)).read_text(encoding="utf-8")).body

    def arguments_of(self, function: str) -> dict[str, Any]:
        """Gives the keyword arguments of the one call that a function returns."""
        found = next(node for node in self._nodes if isinstance(node, ast.FunctionDef) and node.name == function)
        call: Any = found.body[-1]
        return {keyword.arg: self._value(keyword.value) for keyword in call.value.keywords}

    def __missing__(self, name: str) -> Any:
        for node in self._nodes:
            if isinstance(node, ast.ImportFrom) and name in (alias.name for alias in node.names):
                self[name] = _Constants(str(node.module))[name]
            elif isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if name in map(ast.unparse, targets):
                    self[name] = self._value(node.value)
            if name in self:
                return self[name]
        raise KeyError(name)

    def _value(self, node: ast.expr) -> Any:
        return eval(compile(ast.Expression(node), "<source>", "eval"), {}, self)  # noqa: S307 our own source
