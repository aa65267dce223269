"""The help of a command with a recipe, read from the source: a parser of recipes imports torch and transformers."""

import ast
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mixer.tools.cli.command import Command, parser_of_recipes


def early_help(name: str, module: str) -> str:
    """Writes the help of a command.

    Args:
        name: Its name, which is also that of the function that makes it.
        module: The module of this function.
    """
    declared = _Constants(module).arguments_of(name)
    read = {key: declared[key] for key in ("description", "usage", "example", "options")}
    parser, _ = parser_of_recipes(**read)
    return Command(parser, print, example=read["example"]).parser.format_help()


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
