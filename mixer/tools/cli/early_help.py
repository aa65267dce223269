"""The help of a command with a recipe, read from the source: a parser of recipes imports torch and transformers."""

import ast
from importlib.metadata import EntryPoint
from typing import Any

from mixer.tools.cli.command import Command, parser_of_recipes, recipe_command
from mixer.utils.entry_points import parsed_source
from mixer.utils.hidden_names import check_found


def early_help(entry: EntryPoint) -> str | None:
    """Writes the help of a command with a recipe.

    Args:
        entry: Entry point of the function that makes the command.

    Returns:
        The help; `None` where the source does not tell: of other commands, and of what only code can give.
    """
    try:
        check_found(entry.module)
        declared = _Constants(entry.module).arguments_of(entry.attr)
        if declared is None:
            return None
        read = {key: declared[key] for key in ("description", "usage", "example", "options")}
        parser, _ = parser_of_recipes(**read)
    except Exception:  # of another package's source anything: loading the command says what is wrong, if something is
        return None
    return Command(parser, print, example=read["example"]).parser.format_help()


class _Constants(dict[str, Any]):
    """Constants of a module, each read from the source when it is asked for; the module is not imported."""

    def __init__(self, module: str):
        super().__init__()
        self._nodes = parsed_source(module)

    def arguments_of(self, function: str) -> dict[str, Any] | None:
        """Gives the keyword arguments of the `recipe_command` that a function returns; `None` if it does not."""
        functions = (node for node in self._nodes if isinstance(node, ast.FunctionDef) and node.name == function)
        last: Any = next((found.body[-1] for found in functions), None)
        call = getattr(last, "value", None)
        if call is None or getattr(getattr(call, "func", None), "id", "") != recipe_command.__name__:
            return None
        return {keyword.arg: self._value(keyword.value) for keyword in call.keywords}

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
        return eval(compile(ast.Expression(node), "<source>", "eval"), {}, self)  # noqa: S307 of a command that is installed
