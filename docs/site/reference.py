"""The API reference: a page for each name with an example and for the others of a module, read off the source."""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

from griffe import GriffeLoader, Module, Object
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from repository import ROOT

PACKAGES = ("mixer", "replay", "tasks")
FOLDER = "reference"


@dataclass
class Package:
    """A package that exports names.

    Args:
        path: Its dotted name.
        summary: First line of its docstring.
        exported: What it exports, by name.
        pages: The names that are documented below it, by page: one with an example has its own, others the module's.
    """

    path: str
    summary: str
    exported: dict[str, Object]
    pages: dict[str, dict[str, Object]] = field(default_factory=dict)

    @property
    def folder(self) -> str:
        """Where its pages are."""
        return f"{FOLDER}/{self.path.replace('.', '/')}"


def _packages(module: Module) -> Iterator[Module]:
    if module.is_init_module:
        yield module
        for member in module.modules.values():
            if not member.is_alias:  # an import of another package is no part of this one
                yield from _packages(member)


def _exported(package: Module) -> dict[str, Object]:
    """What `__all__` names, and what is imported as itself or with all names, as for type checkers."""
    names = [str(name) for name in package.exports or ()]
    imports = [node for node in ast.walk(ast.parse(package.source)) if isinstance(node, ast.ImportFrom)]
    names += [alias.name for node in imports for alias in node.names if alias.name == alias.asname]
    for name, member in package.members.items():
        is_named = member.wildcard_imported or not member.runtime if member.is_alias else not package.exports
        if is_named and name[0] != "_" and (member.is_alias or member.is_function or member.is_class):
            names.append(name)
    found = {}
    for name in dict.fromkeys(names):
        if name not in package.members:
            raise PluginError(f"{package.path}.__all__ names {name!r}, which is not there.")
        member = package.members[name]
        target = member.final_target if member.is_alias else member
        if target.is_module and name in target.members:  # a module that is hidden by the function it is named after
            target = target.members[name]
        if not target.is_module:
            found[name] = target
    return found


def _summary(member: Object) -> str:
    return member.docstring.value.split("\n\n")[0].replace("\n", " ") if member.docstring else ""


def read_packages() -> list[Package]:
    """Reads what is public, each name below the innermost package that it lies in and is exported by.

    Returns:
        The packages that export something.
    """
    loader = GriffeLoader(search_paths=[str(ROOT)])
    roots = [loader.load(name) for name in PACKAGES]
    loader.resolve_aliases(implicit=False, external=False)
    modules = [module for root in roots for module in _packages(root)]
    packages = [Package(module.path, _summary(module), _exported(module)) for module in modules]
    homes: dict[str, tuple[str, Package]] = {}
    for package in packages:
        for name, member in package.exported.items():
            if member.path not in homes or member.path.startswith(f"{package.path}."):
                homes[member.path] = (name, package)
    for name, package in homes.values():
        member = package.exported[name]
        page = member.name if "\nExample" in getattr(member.docstring, "value", "") else member.module.name
        package.pages.setdefault(page, {})[name] = member
    return sorted((package for package in packages if package.exported), key=lambda package: package.path)


def _import_path(name: str, member: Object, packages: list[Package]) -> str:
    """The shortest path under which a name is exported and found, the one that users import it by."""
    paths = [package.path for package in packages if package.exported.get(name) is member]
    shortest = min(paths, key=len)
    return member.path if member.module.path == f"{shortest}.{name}" else f"{shortest}.{name}"


def _index(package: Package) -> str:
    rows = [f"| [`{name}`][{member.path}] | {_summary(member)} |" for name, member in sorted(package.exported.items())]
    return "\n".join([f"# {package.path}", "", package.summary, "", "| name | |", "|---|---|", *rows, ""])


def _page(paths: list[str]) -> str:
    if len(paths) == 1:
        return f"::: {paths[0]}\n    options:\n      heading_level: 1\n"
    title = ", ".join(path.rpartition(".")[2] for path in paths)
    return "\n\n".join([f"# {title}", *(f"::: {path}" for path in paths), ""])


def navigation(packages: list[Package]) -> list[dict[str, object]]:
    """Gives the pages as an entry of the site's navigation.

    Args:
        packages: What `read_packages` gave.

    Returns:
        A section for each package.
    """
    sections = []
    for package in packages:
        pages = [(", ".join(names), f"{package.folder}/{module}.md") for module, names in package.pages.items()]
        entries = [{title: uri} for title, uri in sorted(pages, key=lambda page: page[0].lower())]
        sections.append({package.path: [f"{package.folder}/index.md", *entries]})
    return sections


def add_pages(packages: list[Package], files: Files, config: object) -> None:
    """Adds the pages to the site's files.

    Args:
        packages: What `read_packages` gave.
        files: The site's files.
        config: The site's configuration.
    """
    for package in packages:
        files.append(File.generated(config, f"{package.folder}/index.md", content=_index(package)))
        for module, names in package.pages.items():
            paths = [_import_path(name, member, packages) for name, member in names.items()]
            files.append(File.generated(config, f"{package.folder}/{module}.md", content=_page(paths)))
