"""Small changes to a module's source, one at a time, by the operators of mutmut.

mutmut itself leaves out what is decorated, properties among them; here its operators alone are used.
"""

import ast
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import libcst
from libcst.metadata import MetadataWrapper, PositionProvider
from mutmut.mutation.mutators import mutation_operators

_LEFT_ALONE = {"len", "isinstance"}


@dataclass(frozen=True)
class Mutant:
    """A module with one change in it.

    Args:
        module: The module's name.
        line: Line of the change.
        lines: First and last line of the function or method that it is in, decorators included; `None` outside of any.
        tree: The module.
        node: What is changed.
        changed: What it is changed to.
    """

    module: str
    line: int
    lines: tuple[int, int] | None
    tree: libcst.Module
    node: libcst.CSTNode
    changed: libcst.CSTNode

    @property
    def change(self) -> str:
        """What was there and what is, in one line."""
        before, after = (" ".join(self.tree.code_for_node(part).split()) for part in (self.node, self.changed))
        return f"{before} -> {after}"

    def source(self) -> str | None:
        """Writes the changed module; `None` if it is no program, or the same one."""
        result = self.tree.deep_replace(self.node, self.changed)
        assert isinstance(result, libcst.Module)
        try:
            is_same = ast.dump(ast.parse(result.code)) == ast.dump(ast.parse(self.tree.code))
            compile(result.code, self.module, "exec")
        except (SyntaxError, ValueError):
            return None
        return None if is_same else result.code


def mutants_of(module: str, path: Path) -> list[Mutant]:
    """Finds every mutant of a module.

    Args:
        module: The module's name.
        path: Its file.

    Returns:
        The mutants in the order of their lines.
    """
    text = path.read_text(encoding="utf-8")
    wrapper = MetadataWrapper(libcst.parse_module(text))
    changes = _Changes()
    wrapper.visit(changes)
    functions = list(_function_lines(ast.parse(text).body))
    mutants = []
    for line, node, changed in changes.found:
        lines = next(((first, last) for first, last in functions if first <= line <= last), None)
        mutants.append(Mutant(module, line, lines, wrapper.module, node, changed))
    return sorted(mutants, key=lambda mutant: mutant.line)


class _Changes(libcst.CSTVisitor):
    """Collects what the operators make of each part of a module.

    Left out are annotations, decorators, docstrings, type aliases, and strings that only say something, in errors.
    """

    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[int, libcst.CSTNode, libcst.CSTNode]] = []
        self._depth = 0
        self._num_errors = 0

    def on_visit(self, node: libcst.CSTNode) -> bool:
        if isinstance(node, libcst.Annotation | libcst.Decorator | libcst.Import | libcst.ImportFrom | libcst.Assert):
            return False
        if _is_docstring(node) or (self._depth == 0 and _is_alias(node)) or _is_plain_call(node):
            return False
        self._depth += isinstance(node, libcst.FunctionDef)
        self._num_errors += isinstance(node, libcst.Raise)
        if not (self._num_errors and isinstance(node, libcst.BaseString)):
            self._collect(node)
        return True

    def on_leave(self, original_node: libcst.CSTNode) -> None:
        self._depth -= isinstance(original_node, libcst.FunctionDef)
        self._num_errors -= isinstance(original_node, libcst.Raise)

    def _collect(self, node: libcst.CSTNode) -> None:
        position = self.get_metadata(PositionProvider, node, None)
        for kind, operator in mutation_operators:
            if isinstance(node, kind):
                line = position.start.line if position is not None else 0
                self.found += [(line, node, changed) for changed in operator(node)]


def _is_docstring(node: libcst.CSTNode) -> bool:
    return isinstance(node, libcst.Expr) and isinstance(node.value, libcst.BaseString)


def _is_alias(node: libcst.CSTNode) -> bool:
    """Whether it is a name of a type (`FloatArray = NDArray[...]`) or the list of a module's names."""
    if not isinstance(node, libcst.Assign):
        return False
    target = node.targets[0].target
    is_all = isinstance(target, libcst.Name) and target.value == "__all__"
    return is_all or isinstance(node.value, libcst.Subscript)


def _is_plain_call(node: libcst.CSTNode) -> bool:
    if not (isinstance(node, libcst.Call) and isinstance(node.func, libcst.Name)):
        return False
    return node.func.value in _LEFT_ALONE


def _function_lines(body: Sequence[ast.stmt]) -> Iterator[tuple[int, int]]:
    for statement in body:
        if isinstance(statement, ast.ClassDef):
            yield from _function_lines(statement.body)
        elif isinstance(statement, ast.FunctionDef):
            first = min([statement.lineno, *(decorator.lineno for decorator in statement.decorator_list)])
            yield first, statement.end_lineno or statement.lineno
