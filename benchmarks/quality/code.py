"""A digest of the code that a policy's results come from, so that results of a policy that was changed do not count.

What changes no result is not in it: comments, docstrings, annotations, and texts of several words, which are messages.
"""

import ast
import hashlib
import inspect
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pkgutil import iter_modules

from benchmarks.quality.policies import AUTO, SFT, classes
from mixer.measurements import BY_NAME, hooks as hook_files
from mixer.policies import Policy, as_policy
from mixer.utils.recorded_arguments import as_data

Name = tuple[str, str]  # a module, and a name in it
_FOLLOWED = ("mixer.policies", "mixer.measurements", "mixer.gradients")
_CONCATENATION = "benchmarks.quality.concatenation"  # trains without a policy
# The types that every policy shares: what a run does otherwise by a change there counts by `PROTOCOL`.
_SHARED = ("mixer.policies.contract", "mixer.measurements.measurement")


@dataclass(frozen=True)
class _Module:
    """The top level of a file.

    Args:
        definitions: By name, the code of functions, classes and constants, without comments and docstrings.
        uses: By name, the names that this code uses.
        imports: By name, where it comes from.
    """

    definitions: dict[str, str]
    uses: dict[str, set[str]]
    imports: dict[str, Name]


@cache
def code_of(class_name: str) -> str:
    """Gives the digest for a policy.

    Args:
        class_name: The class, among the built-in policies, or `"auto"`.

    Returns:
        A digest of `definitions_of` the policy, and of the arguments of what `"auto"` stands for.
    """
    arguments = json.dumps(as_data(as_policy(AUTO))) if class_name == AUTO else ""
    text = text_of(definitions_of(class_name)) + arguments
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def text_of(names: Iterable[Name]) -> str:
    """Gives the code of definitions, without comments and docstrings."""
    return "\n".join(_module(module).definitions[name] for module, name in names)


def definitions_of(class_name: str) -> list[Name]:
    """Lists the functions, classes and constants that a policy's results come from.

    Args:
        class_name: The class, among the built-in policies, or `"auto"`.

    Returns:
        What the class and the policies inside it use in the packages of policies, measurements and gradients, with the
        hooks that make these measurements, in order of the alphabet. Trainer, planner and the types that all policies
        share are left out: who changes what a run does there has to raise `PROTOCOL`.
    """
    if class_name == SFT:
        return sorted(reached([(_CONCATENATION, "train")], [_CONCATENATION]))
    policy: Policy | None = as_policy(AUTO) if class_name == AUTO else None
    kinds = [classes()[class_name]] if policy is None else []
    while policy is not None:
        kinds.append(type(policy))
        policy = getattr(policy, "policy", None)
    requests = {(kind.__module__, kind.__name__): kind.__name__ for kind in BY_NAME.values()}
    found = reached((kind.__module__, kind.__name__) for kind in kinds)
    while hooks := {hook for name in found & requests.keys() for hook in _hooks_of(requests[name])} - found:
        found |= reached(hooks)
    return sorted(found)


def reached(names: Iterable[Name], followed: Sequence[str] = _FOLLOWED, shared: Sequence[str] = _SHARED) -> set[Name]:
    """Follows the names that code uses, in its own file and by imports.

    Args:
        names: Where to begin.
        followed: Packages to follow imports into.
        shared: Modules that are left out.

    Returns:
        All definitions that are used.
    """
    waiting, found = [*names], set[Name]()
    while waiting:
        own, name = waiting.pop()
        is_followed = any(f"{own}.".startswith(f"{package}.") for package in followed) and own not in shared
        if not is_followed or (own, name) in found:
            continue
        module = _module(own)
        if name in module.imports:
            waiting.append(module.imports[name])
        elif name in module.definitions:
            found.add((own, name))
            waiting += [(own, used) for used in module.uses[name]]
    return found


@cache
def _hooks_of(request: str) -> list[Name]:
    """Lists the functions that make the hooks of the files that import a request."""
    modules = [f"{hook_files.__name__}.{file.name}" for file in iter_modules(hook_files.__path__)]
    is_maker = {name: "new_hook" in _module(name).definitions for name in modules}
    return [(name, "new_hook") for name in modules if is_maker[name] and request in _module(name).imports]


@cache
def _module(name: str) -> _Module:
    tree = ast.parse(inspect.getsource(import_module(name)))
    uses = {own: _used(node) for node in tree.body for own in _defined(node)}
    tree = _WhatIsComputed().visit(tree)
    definitions = {own: ast.unparse(node) for node in tree.body for own in _defined(node)}
    imported = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and node.module]
    imports = {own.asname or own.name: (str(node.module), own.name) for node in imported for own in node.names}
    return _Module(definitions, uses, imports)


class _WhatIsComputed(ast.NodeTransformer):
    """Leaves out docstrings, annotations, and texts of several words: what is said to people."""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        node.returns = None
        return self._without_docstring(node)

    def visit_ClassDef(self, node: ast.ClassDef) -> ast.AST:
        return self._without_docstring(node)

    def visit_arg(self, node: ast.arg) -> ast.AST:
        node.annotation = None
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        node.annotation = ast.Constant(None)
        return self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> ast.AST:
        is_said = isinstance(node.value, str) and " " in node.value
        return ast.Constant("") if is_said else node

    def _without_docstring(self, node: ast.FunctionDef | ast.ClassDef) -> ast.AST:
        if ast.get_docstring(node) is not None:
            node.body = node.body[1:] or [ast.Pass()]
        return self.generic_visit(node)


def _defined(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.ClassDef | ast.FunctionDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign | ast.Assign):
        return [own.id for own in ast.walk(node) if isinstance(own, ast.Name) and isinstance(own.ctx, ast.Store)]
    return []


def _used(node: ast.stmt) -> set[str]:
    return {own.id for own in ast.walk(node) if isinstance(own, ast.Name)}
