"""Nothing in the source loads files in a way that runs code: searched for in the syntax trees."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGES = ("mixer", "replay", "tasks")
REFUSED_MODULES = {"pickle", "cPickle", "_pickle", "marshal", "shelve", "dill", "joblib", "cloudpickle", "jsonpickle"}
REFUSED_CALLS = {
    "eval",
    "exec",
    "compile",
    "__import__",
    "read_pickle",
    "UnsafeLoader",
    "FullLoader",
    "unsafe_load",
    "full_load",
}
DYNAMIC_IMPORTS = {"import_module", "resolve_name"}
# Why each of these is none.
ALLOWED = {
    ("mixer/packing.py", "pickle"): "samples on their way from this run's own workers, in memory",
    ("tasks/sources/repeatable.py", "pickle"): "compares two samples by their bytes; loads nothing",
    ("mixer/cli.py", "import_module"): "from a table in the source",
    ("mixer/lazy_names.py", "import_module"): "from a table in the source",
    ("mixer/ending.py", "import_module"): "deepspeed alone",
    ("mixer/fit/libraries.py", "import_module"): "names in the source",
    ("mixer/weightings.py", "import_module"): "torchjd alone",
    ("mixer/trackers/mlflow.py", "import_module"): "mlflow alone",
    ("mixer/trackers/wandb.py", "import_module"): "wandb alone",
    ("mixer/trackers/trackio.py", "import_module"): "trackio alone",
    ("tasks/sources/digits.py", "import_module"): "sklearn.datasets alone",
    ("mixer/written_class.py", "import_module"): "a class that the user writes on the command line",
    ("mixer/unknown_fields.py", "import_module"): "a class of the recipe that the user runs",
    ("mixer/called_by_name.py", "resolve_name"): "a function of the recipe that the user runs",
}


def findings(tree: ast.AST) -> Iterator[str]:
    """Gives what a source does that may run code out of a file."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names] + (
                [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            )
            yield from sorted({name.partition(".")[0] for name in names} & REFUSED_MODULES)
        elif isinstance(node, ast.Attribute) and node.attr in ("UnsafeLoader", "FullLoader", "Loader"):
            yield node.attr
        elif isinstance(node, ast.Call):
            yield from _of_call(node)


def _of_call(node: ast.Call) -> Iterator[str]:
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    owner = getattr(getattr(node.func, "value", None), "id", "")
    given = {word.arg: word.value for word in node.keywords}
    flags = {word: getattr(value, "value", None) for word, value in given.items()}
    is_method = isinstance(node.func, ast.Attribute) and owner not in ("builtins", "pd", "pandas", "yaml")
    if name in REFUSED_CALLS and not (is_method and name in ("eval", "exec", "compile")):
        yield name
    if name in DYNAMIC_IMPORTS:
        yield name
    if (owner, name) == ("torch", "load") and flags.get("weights_only") is not True:
        yield "torch.load"
    if owner in ("np", "numpy") and name == "load" and flags.get("allow_pickle") is not False:
        yield "numpy.load"
    if (owner, name) == ("yaml", "load"):
        yield "yaml.load"
    if "trust_remote_code" in given:
        yield "trust_remote_code"


def _sources() -> list[Path]:
    return [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]


def test_nothing_is_loaded_that_runs_code() -> None:
    found = {
        (path.relative_to(ROOT).as_posix(), what)
        for path in _sources()
        for what in findings(ast.parse(path.read_text()))
    }
    assert found == set(ALLOWED)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from dill import loads",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "np.load(path)",
        "numpy.load(path, allow_pickle=True)",
        "yaml.load(text, Loader)",
        "yaml.unsafe_load(text)",
        "eval(text)",
        "exec(text)",
        "compile(text, '', 'exec')",
        "pd.read_pickle(path)",
        "importlib.import_module(name)",
        "__import__(name)",
        "AutoModel.from_pretrained(name, trust_remote_code=True)",
    ],
)
def test_the_search_finds(source: str) -> None:
    assert list(findings(ast.parse(source)))


@pytest.mark.parametrize(
    "source", ["torch.load(path, weights_only=True)", "model.eval()", "re.compile(text)", "json.load(file)"]
)
def test_the_search_passes(source: str) -> None:
    assert not list(findings(ast.parse(source)))
