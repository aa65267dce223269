"""Nothing in the source loads files in a way that runs code: searched for in the syntax trees."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PACKAGES = ("mixer", "replay", "tasks")
REFUSED_MODULES = {
    *("pickle", "cPickle", "_pickle", "pickletools", "marshal", "shelve", "dill", "joblib", "cloudpickle"),
    *("jsonpickle", "runpy", "code", "codeop"),
}
# By the last part of their names, whoever's they are.
REFUSED_NAMES = {
    *("__import__", "read_pickle", "read_hdf", "add_safe_globals", "safe_globals", "spec_from_file_location"),
    *("import_module", "resolve_name", "SourceFileLoader", "load_module", "exec_module"),
}
# By their whole names.
REFUSED = {
    *("eval", "exec", "compile", "builtins.eval", "builtins.exec", "builtins.compile"),
    *("pandas.eval", "torch.jit.load", "torch.hub.load", "torch.export.load", "torch.package.PackageImporter"),
    *("torch._load_global_deps", "torch.serialization._legacy_load", "numpy.core.multiarray._reconstruct"),
    *(f"yaml.{name}" for name in ("load", "load_all", "unsafe_load", "unsafe_load_all", "full_load", "full_load_all")),
    *(f"yaml.{c}{name}Loader" for c in ("", "C") for name in ("", "Unsafe", "Full")),
}
# These run no code if an argument says so.
IF_SAID = {
    **dict.fromkeys(("torch.load", "torch.serialization.load", "torch.distributed.load"), ("weights_only", True)),
    **dict.fromkeys(("numpy.load", "numpy.lib.npyio.load", "numpy.lib.format.read_array"), ("allow_pickle", False)),
}
USUAL = {"np": "numpy", "pd": "pandas", "pq": "pyarrow.parquet", "pa": "pyarrow"}
# Why each of these is none.
ALLOWED = {
    ("mixer/loading/transport.py", "pickle"): "samples on their way from this run's own workers, in memory",
    ("mixer/loading/iterable/passes.py", "pickle"): "rows on their way from this run's own ranks, in memory",
    ("mixer/loading/row_digest.py", "marshal"): "digests of samples by their bytes; loads nothing",
    ("tasks/sources/checks.py", "pickle"): "compares two samples by their bytes; loads nothing",
    ("mixer/utils/lazy_imports.py", "import_module"): "from a table in the source",
    ("mixer/distributed/ending.py", "import_module"): "deepspeed alone",
    ("mixer/gradients/conflict.py", "import_module"): "torchjd alone",
    ("mixer/measurements/hooks/table.py", "import_module"): "the files of its own folder",
    ("tasks/sources/loaders.py", "import_module"): "sklearn.datasets alone",
    ("mixer/tools/recipe/fields.py", "import_module"): "a class of the recipe that the user runs",
    ("mixer/tools/recipe/trainers.py", "import_module"): "names in the source",
    ("mixer/tools/recipe/coming_from/convert.py", "import_module"): "names in the source",
    **dict.fromkeys(
        (("mixer/tools/cli/early_help.py", name) for name in ("compile", "eval")), "constants of its folder"
    ),
    ("mixer/__init__.py", "*"): "the policies, for type checkers alone",
    ("mixer/checkpoint/trainer_files.py", "safe_globals"): "numpy's arrays alone, of random states",
    ("mixer/tools/recipe/streams.py", "resolve_name"): "a function of the recipe that the user runs",
}


# An option and the literal that it is given: in a call, a dict, an assignment or a default.
OPTION = re.compile(r"(trust_remote_code|allow_pickle|weights_only)(?:(?:: [\w. |]+?)? ?=(?!=)|': ) ?([\w.]+)")


def findings(source: str) -> Iterator[str]:
    """Gives what a source does that may run code out of a file."""
    tree = ast.parse(source)
    imported, harmless = _imported(tree), set()
    for node in ast.walk(tree):  # breadth first: a call comes before its parts
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield from _of_import(node)
        elif isinstance(node, ast.Call):
            word, value = IF_SAID.get(_name_of(node.func, imported), ("", None))
            if any(one.arg == word and getattr(one.value, "value", None) is value for one in node.keywords):
                harmless.add(node.func)
        elif isinstance(node, ast.Name | ast.Attribute) and node not in harmless:
            name = _name_of(node, imported)
            last = name.rpartition(".")[2]
            if name in REFUSED | set(IF_SAID):
                yield name
            elif last in REFUSED_NAMES:
                yield last
    for option, given in OPTION.findall(ast.unparse(tree)):
        harmless_value = {"allow_pickle": "False", "weights_only": "True"}.get(option)
        if given != harmless_value if harmless_value else given in ("True", "None"):
            yield option


def _imported(tree: ast.AST) -> dict[str, str]:
    """Gives the whole name of what is imported, by how it is called in the source."""
    names = dict(USUAL)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.asname: alias.name for alias in node.names if alias.asname}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _of_import(node: ast.Import | ast.ImportFrom) -> Iterator[str]:
    names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else [node.module or ""]
    yield from sorted({name.partition(".")[0] for name in names} & REFUSED_MODULES)
    if isinstance(node, ast.ImportFrom) and any(alias.name == "*" for alias in node.names):
        yield "*"


def _name_of(node: ast.AST, imported: dict[str, str]) -> str:
    """Gives the dotted name of what a source speaks of; a method of something nameless has a `?` before it."""
    if isinstance(node, ast.Name):
        return imported.get(node.id, node.id)
    if isinstance(node, ast.Attribute):
        return f"{_name_of(node.value, imported)}.{node.attr}"
    return "?"


@pytest.mark.full
def test_nothing_is_loaded_that_runs_code() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), what)
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for what in findings(path.read_text())
    }
    assert found == set(ALLOWED)
