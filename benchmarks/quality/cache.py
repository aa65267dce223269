"""What a run of `benchmarks.quality` is, and where its result is kept: a file that goes by all that matters."""

import ast
import hashlib
import inspect
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from benchmarks.quality.policies import classes
from benchmarks.quality.scenarios import Scenario
from mixer.policies import Policy

PROTOCOL = 3  # to be raised when results of earlier runs do not count any more
# Modules that measure what a policy needs and are likely to change with it.
_MEASURED = {
    "alignment": ("mixer.trainer.observers.targets", "mixer.gradients.metric"),
    "branches": ("mixer.trainer.observers.branches", "mixer.models.branches", "mixer.policies.shared.mixing_law"),
}


@cache
def code_of(class_name: str) -> str:
    """Gives a digest of a policy's code, so that results of a policy that was changed since do not count.

    Args:
        class_name: The class, among the built-in policies, or `"auto"`.

    Returns:
        A digest of the modules of its class, of those above it, and of what measures targets for it, without comments
        and docstrings. What they call is left out: who changes that has to raise `PROTOCOL`.
    """
    own = classes()[class_name]
    names = {owner.__module__ for owner in own.__mro__ if issubclass(owner, Policy) and owner is not Policy}
    names |= {name for need, measured in _MEASURED.items() if need in own.needs for name in measured}
    trees = [ast.parse(inspect.getsource(import_module(name))) for name in sorted(names)]
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef) and ast.get_docstring(node) is not None:
            node.body[0] = ast.Pass()
    return hashlib.blake2b("".join(map(ast.dump, trees)).encode(), digest_size=6).hexdigest()


@dataclass(frozen=True)
class Run:
    """What a run is; another one has another file.

    Args:
        scenario: The scenario.
        name: Name of the competitor.
        class_name: Class of its policy.
        settings: Arguments of the policy, plain data.
        seed: Seed of the weights and of the order of the samples.
    """

    scenario: Scenario
    name: str
    class_name: str
    settings: Mapping[str, Any]
    seed: int

    def key(self) -> dict[str, Any]:
        """Everything that its result depends on, but the name, which is only what it is called."""
        own = {name: value for name, value in asdict(self).items() if name != "name"}
        own["scenario"] = self.scenario.content
        own["code"] = code_of(self.class_name)
        plain: dict[str, Any] = json.loads(json.dumps({"protocol": PROTOCOL, **own}))
        return plain

    def path(self, folder: Path) -> Path:
        """Names the file of the result in the folder of all results."""
        digest = hashlib.blake2b(json.dumps(self.key(), sort_keys=True).encode(), digest_size=6).hexdigest()
        called = "".join(sign if sign.isalnum() else "-" for sign in self.name)
        return folder / self.scenario.size / self.scenario.name / f"{called}-{self.seed}-{digest}.json"

    def result(self, folder: Path) -> dict[str, Any] | None:
        """Reads the result of an earlier run, `None` if there is none, from the folder of all results."""
        path = self.path(folder)
        if not path.is_file():
            return None
        found: dict[str, Any] = json.loads(path.read_text())
        return found if found["key"] == self.key() else None


def write_whole(path: Path, content: bytes) -> None:
    """Writes a file so that it is never there in part.

    Args:
        path: The file; its folder is made.
        content: What it holds.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=path.parent, suffix=".part", delete=False) as file:
        file.write(content)
    os.replace(file.name, path)
